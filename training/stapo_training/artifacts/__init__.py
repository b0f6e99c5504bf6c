"""What a training leaves for others: exported weights and the model card."""
