"""Does the suite run on this machine's GPU?"""
