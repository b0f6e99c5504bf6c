"""Training data: from a published prompt set to veRL's Parquet files, with a report of what it shares with benchmarks.

source         where rows come from: a local file or a dataset on the hub
clean          wrapper, copies, conflicting golds, language
contamination  which benchmark problems stand among the training prompts
rows           veRL's columns, the instruction, the content hash
folder         the record of a prepared folder, and whether it holds the same content
prepare        `stapo-train data`: all of it in order, and the folder it leaves
"""
