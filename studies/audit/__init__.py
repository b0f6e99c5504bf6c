"""Do the numbers of the paper's printed table agree with one another, and with the claims about them?"""
