"""Makes an installed SGLang run on a CPU, in the folder of its packages.

1. A package sgl_kernel that can be imported and does nothing: the published one is for
   CUDA only. Whatever is called in it fails.
2. The memory that NIXL transfers is the host's ("DRAM"), not a GPU's ("VRAM").
3. Memory is not registered with CUDA where there is no CUDA.
4. Memory of adapters is not pinned for a GPU where there is none.

Nothing else of SGLang is changed. 2 and 3 are for prefill and decode apart, 4 is for LoRA.
"""

import pathlib
import sys

site = pathlib.Path(sys.argv[1])

STUB = '''"""Stands in for a package that is published for CUDA only. It can be imported."""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"
__path__ = []


class Absent:
    """A name in it. Calling one is an error."""

    def __init__(self, name):
        self.__name__ = name

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(self.__name__ + " needs CUDA")

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(self.__name__ + "." + name)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent("sgl_kernel." + name)


class Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = __getattr__
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Submodules())
'''


def edit(name, *changes):
    """Makes each change, (from, to, how often it is there; 0: at least once), or none."""
    path = site / "sglang" / "srt" / name
    text = path.read_text()
    for old, new, times in changes:
        found = text.count(old)
        if found == 0 or times and found != times:
            sys.exit(f"{name}: {old!r} is there {found} times: this is not the SGLang that the edits are for")
        text = text.replace(old, new)
    path.unlink()  # a new file: the old one may be the installer's cache, too
    path.write_text(text)
    print(f"{name}: {len(changes)} edits")


(site / "sgl_kernel").mkdir(exist_ok=True)
(site / "sgl_kernel" / "__init__.py").write_text(STUB)
edit(
    "disaggregation/nixl/conn.py",
    ('for mem_kind in ("VRAM", "DRAM")', 'for mem_kind in ("DRAM",)', 1),
    ("kinds = [str(kind) for kind in kinds]", 'kinds = ["DRAM" for _ in kinds]', 1),
    ('"VRAM"', '"DRAM"', 0),
)
edit(
    "mem_cache/pool_host/common.py",
    ("    # Avoid oversized cudaHostRegister calls on large host pools.\n",
     "    if not torch.cuda.is_available():\n        return\n", 1),
    ("def _cuda_host_unregister(buffer: torch.Tensor) -> None:\n",
     "def _cuda_host_unregister(buffer: torch.Tensor) -> None:\n    if not torch.cuda.is_available():\n        return\n", 1),
)
edit(
    "lora/layers.py",
    ("pin_memory=True", "pin_memory=torch.cuda.is_available()", 0),
    (".cpu().pin_memory()", ".cpu()", 1),
)
edit("lora/lora.py", ("weight.pin_memory()", "weight", 3))
edit(
    "lora/backend/torch_backend.py",
    ("pin_memory=True", "pin_memory=torch.cuda.is_available()", 0),
    (".pin_memory()", "", 4),
)
