"""What a printed table of accuracies says when its numbers are checked against each other. It accuses nobody."""
