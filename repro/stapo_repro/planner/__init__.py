"""What a cell that is not run would take: hours, disk and cost, each with its formula and the source of its inputs.

facts    what the paper states of its runs, machines, models
missing  which cells have no record
hours    a training's and an evaluation's time and disk: measured where a record exists, else by formula
plan     all of it together, and the check against the paper's own budget
render   text and JSON
"""
