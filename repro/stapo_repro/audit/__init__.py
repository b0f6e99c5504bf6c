"""What a printed table of accuracies says when its numbers are checked against each other.

Each check is a pure function of the table (and, for the claims, of numbers printed elsewhere). A finding states what
was computed and innocent reasons that would explain it. It says nothing about anybody.
"""
