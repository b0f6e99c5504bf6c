"""Figures from records alone: one module a family, one style. `stapo_repro.pages.figures` has the list of families.

experiment  the records of one experiment, ordered into groups, and the quantities that several figures show
canvas      style, sheet, marks, legends, saving
inline      a figure's SVG inside a page
"""
