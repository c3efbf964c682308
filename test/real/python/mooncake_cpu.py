"""Makes vLLM's MooncakeConnector run where there is no GPU, in the folder that is named
first, with vLLM's packages, that are named second.

1. The transfer engine is linked with libibverbs, which many machines do not have; NIXL's
   package brings it, and it is found by a link.
2. The connector asks which accelerator is the current one, of which there is none: the
   answer is 0. A sitecustomize.py does that, in processes that find this folder first.

Nothing of vLLM or Mooncake is changed.
"""

import pathlib
import sys

home, site = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])

CUSTOMIZE = '''"""Says that accelerator 0 is the current one, once torch.accelerator is imported."""

import importlib.abc
import importlib.util
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.accelerator":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.current_device_index = lambda: 0
            module.set_device_index = lambda *_: None

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
'''

found = sorted(site.glob("nixl_cu1*.libs/libibverbs-*.so*"))
if not found:
    sys.exit(f"no libibverbs below {site}: NIXL's package should bring it")
lib = home / "lib"
lib.mkdir(exist_ok=True)
link = lib / "libibverbs.so.1"
link.unlink(missing_ok=True)
link.symlink_to(found[0])
# What libibverbs needs lies beside it.
for other in found[0].parent.iterdir():
    beside = lib / other.name
    if not beside.exists():
        beside.symlink_to(other)
(home / "sitecustomize.py").write_text(CUSTOMIZE)
