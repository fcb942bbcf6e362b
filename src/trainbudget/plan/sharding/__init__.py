"""Sharded training as a replay: a state machine per strategy owns parameters, gradients, optimizer state and communication
buffers.

Sizes and lifetimes mirror the libraries' own hooks (torch 2.13 ``distributed``, DeepSpeed 0.19); activations, logits and
temporaries are replayed as traced. Every buffer goes to the allocator pool of the stream it is made on.
"""
