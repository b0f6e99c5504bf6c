"""What do selecting, grading and the order of an evaluation's work cost, beside the usual ways?"""
