"""Layers that the language, speech and diffusion subjects of the zoo share.

Start with `hollow`, which builds a module without weights in memory.
"""

import math

import coremltools as ct
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from zoo_case import empty


def hollow(make, *arguments, **options):
    """Build a module whose parameters take no memory."""
    return empty(lambda: make(*arguments, **options))


def constant(values):
    """A float tensor of an array."""
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def sizes(x):
    """The shape as plain numbers, which a trace does not compute again."""
    return [int(n) for n in x.shape]


def floats(name, *shape, dtype=np.float32):
    return ct.TensorType(name=name, shape=shape, dtype=dtype)


def halves(name, *shape):
    return ct.TensorType(name=name, shape=shape, dtype=np.float16)


def ints(name, *shape):
    return ct.TensorType(name=name, shape=shape, dtype=np.int32)


def conv(n_in, n_out, bias=True):
    """A linear layer in the (B, C, 1, S) layout."""
    return nn.Conv2d(n_in, n_out, 1, bias=bias)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of (B, C, 1, S), in elementary ops for the Neural Engine.

    The converter makes `layer_norm` of them. Where a source counted the ops apart, `fused=False`
    scales in an order that the converter does not know.
    """

    def __init__(self, n, eps=1e-5, fused=True):
        super().__init__()
        self.eps, self.fused = eps, fused
        self.weight = nn.Parameter(torch.ones(1, n, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, n, 1, 1))

    def forward(self, x):
        centered = x - x.mean(dim=1, keepdim=True)
        variance = (centered * centered).mean(dim=1, keepdim=True)
        scale = (variance + self.eps).rsqrt()
        if not self.fused:
            return centered * (scale * self.weight) + self.bias
        return (centered * scale + self.bias) * self.weight


class RmsNorm(nn.Module):
    """RMS norm over one axis."""

    def __init__(self, n, axis=-1, rank=2, eps=1e-6):
        super().__init__()
        self.axis, self.eps = axis, eps
        shape = [1] * rank
        shape[axis] = n
        self.weight = nn.Parameter(torch.ones(n) if axis == -1 else torch.ones(shape))

    def forward(self, x):
        scale = ((x * x).mean(dim=self.axis, keepdim=True) + self.eps).rsqrt()
        return x * scale * self.weight


def split_attention(q, k, v, n_heads, scale_first=False, mask=None, chunk=None):
    """Attention with one einsum per head and chunk of queries // [B, C, 1, Sq] -> the same"""
    size = sizes(q)[1] // n_heads
    scale = 1 / math.sqrt(size)
    if scale_first:
        q = q * scale
    n_queries = sizes(q)[3]
    keys = k.transpose(1, 3).split(size, dim=3)
    heads = []
    for q_head, k_head, v_head in zip(q.split(size, dim=1), keys, v.split(size, dim=1)):
        whole = chunk is None or n_queries <= chunk
        queries = (
            [q_head] if whole else [q_head[..., i : i + chunk] for i in range(0, n_queries, chunk)]
        )
        parts = []
        for q_part in queries:
            scores = torch.einsum("bchq,bkhc->bkhq", q_part, k_head)
            if not scale_first:
                scores = scores * scale
            if mask is not None:
                scores = scores + mask
            parts.append(torch.einsum("bkhq,bchk->bchq", scores.softmax(dim=1), v_head))
        heads.append(parts[0] if whole else torch.cat(parts, dim=3))
    return torch.cat(heads, dim=1)


def heads_of(x, n_heads):
    """[B, S, C] -> [B, heads, S, C / heads]"""
    batch, length, n = sizes(x)
    return x.reshape(batch, length, n_heads, n // n_heads).transpose(1, 2)


def joined(x):
    """[B, heads, S, size] -> [B, S, C]"""
    batch, n_heads, length, size = sizes(x)
    return x.transpose(1, 2).reshape(batch, length, n_heads * size)


def attention(q, k, v, mask=None):
    """Attention of a plain graph // [B, heads, Sq, size] -> [B, heads, Sq, size]"""
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(sizes(q)[-1]))
    if mask is not None:
        scores = scores + mask
    return scores.softmax(dim=-1) @ v


def rotate_half(x, axis=-1):
    first, second = x.chunk(2, dim=axis)
    return torch.cat([-second, first], dim=axis)
