"""From a request to a finished run: stages that are commands of the wings, in order, resumable.

request    what is asked for, of five experiments; values are checked
chain      the stages with their exact commands; what `stapo-repro run` does
engine     runs stages in order, once each
processes  child processes that cannot outlive the driver
checks     every check before anything starts, and what a dry run prints
cost       hours, GPU hours and disk of a stage
"""
