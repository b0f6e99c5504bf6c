"""What does another harness, lighteval, say of the same problems and responses?"""
