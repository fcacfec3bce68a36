"""The fast implementations of the engine; the computations themselves are defined one folder up.

A step of one client is mapped over all clients with vmap (`engine.py`). These parts make that fast:

- `record`, `program`: a step as a flat list of ATen calls, replayed for every batch; on CUDA as a CUDA graph.
- `stacked_conv`, `stacked_pool`, `stacked_norm`: layers with their own rules for vmap.
- `dispatch`, `patches`, `kernels`: the implementations of these layers, chosen by device and dtype.
- `lockstep`: several federations trained as one stack of clients.
"""
