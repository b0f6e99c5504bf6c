"""The four ways to train a mini-batch with a selector (`SelectorConfig.plan`), a file each; `base` is what they share.

masked    the mask is known before the training pass (statistics of the old policy)
two_pass  a forward pass without gradients gives the statistics of the current policy: the reference
local     each micro-batch selects for itself while it is trained
guessed   the exact mask of the current policy without the extra forward pass (`form: speculative`)

`response_mask` is the numerator of veRL's loss; the engine counts the denominator from `loss_mask`. `masked` and
`two_pass` replace both before the pass. `local` and `guessed` learn the mask while the pass runs: parameters do not
change within a mini-batch and the loss is a sum over tokens, so they divide by all N response tokens and multiply the
gradients by N / kept before they are clipped.
"""
