"""What a cell that is not run would take: hours and disk, each with its formula and the source of its inputs.

estimates  what the paper states of its runs; machines; time and disk of a training and of an evaluation
plan       what each model lacks and would take, as a table and as text
"""
