"""Sharing records: one archive of finished runs, checked as a whole before anything of it is believed.

bundle  what a bundle is: manifest, names, limits, the hash over the whole file
pack    run folders to a bundle, the same bytes each time
cells   what the records of a bundle say of each other
check   a bundle that may be damaged, tampered with or hostile: refused, and where
unpack  merging a checked bundle into a folder without overwriting anything
"""
