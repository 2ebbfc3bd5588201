"""A base image made of this machine's own shell and tools: no registry, no download, a second or two."""

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

IMAGE = "assay-test-scratch:latest"
TOOLS = """
    sh bash sleep cat kill mkdir rm cp mv ls chmod chown head tail yes truncate ln mkfifo touch timeout id sed tr wc grep env true
""".split()


def rootfs() -> bytes:
    """A tar with the tools, the libraries they load, and the folders every program expects."""
    out = io.BytesIO()
    paths = {Path("/bin") / tool: Path(shutil.which(tool)).resolve() for tool in TOOLS if shutil.which(tool)}
    for binary in list(paths.values()):
        for library in _libraries(binary):
            paths[library] = library.resolve()
    with tarfile.open(fileobj=out, mode="w", dereference=True) as tar:
        for folder in ("tmp", "root", "etc", "app"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(info)
        _add_passwd(tar)
        for name, source in sorted(paths.items()):
            tar.add(source, str(name).lstrip("/"))
    return out.getvalue()


def _add_passwd(tar: tarfile.TarFile) -> None:
    content = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"
    info = tarfile.TarInfo("etc/passwd")
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _libraries(binary: Path) -> list[Path]:
    listed = subprocess.run(["ldd", str(binary)], capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]
