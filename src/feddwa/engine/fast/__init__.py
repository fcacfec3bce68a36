"""How the engine is fast; what it computes stands one folder up.

A step of one client is mapped over all clients with vmap (`engine.py`). Here are the parts that make that quick:

- `record`, `program`: a step as a flat list of ATen calls, replayed for every batch; on CUDA as a CUDA graph.
- `stacked_conv`, `stacked_pool`, `stacked_norm`: layers with rules of their own for vmap.
- `dispatch`, `patches`, `kernels`: the implementations of these layers, chosen by device and dtype.
- `lockstep`: several federations trained as one stack of clients.
"""
