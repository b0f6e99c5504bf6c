"""What a cell that is not run would take: hours, disk and cost, each with its formula and the source of its inputs.

budget     what the paper states of its runs; machines, models
estimates  time and disk of a training and of an evaluation: measured where a record exists, else by formula
plan       what each model lacks and would take, and the formula checked against the paper's own budget
render     the plan as text
"""
