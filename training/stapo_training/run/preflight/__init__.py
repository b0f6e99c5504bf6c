"""What can be known before a run starts anything expensive: checks, arithmetic of memory, disk and time, the panel.

checks.py collects every refusal; the other modules each know one thing (a model's shape, a card, a cluster, a disk).
"""
