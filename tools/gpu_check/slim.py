"""Makes a libnccl small enough to be carried along: it keeps the device code of one architecture.

NCCL has device code for a dozen architectures, in the ELF sections of CUDA's fat binaries. The code
of the others becomes zeros, which compress to nothing. No byte moves, so the file stays a valid
library.
"""

import lzma
import mmap
import pathlib
import shutil
import struct
import subprocess
import tempfile
import zipfile

MEMBER = "nvidia/nccl/lib/libnccl.so.2"

# A fat binary is a header and entries, each with a header of its own and one kind of code.
FAT_BINARY = struct.Struct("<IHHQ")  # magic, version, length of the header, length of the entries
ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, length of the header, length of the code; architecture
MAGIC = 0xBA55ED50
MACHINE_CODE = 2
EXECUTABLE, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"


def sections(image):
    """The name, offset and length of each section of a 64-bit ELF file."""
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("this is no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", image, 0x28)
    length, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<I20xQQ", image, table + length * number) for number in range(count)]
    for name, offset, size in headers:
        begin = headers[names][1] + name
        yield image[begin : image.find(b"\0", begin)].decode(), offset, size


def codes(image, offset, end):
    """The kind, architecture, offset and length of each piece of code between two offsets."""
    while offset + FAT_BINARY.size <= end:
        magic, _, header, length = FAT_BINARY.unpack_from(image, offset)
        if magic != MAGIC:
            # Fat binaries begin at multiples of 8 bytes.
            offset += 8
            continue
        at = offset + header
        offset = at + length
        while at < offset:
            kind, _, header, size, architecture = ENTRY.unpack_from(image, at)
            yield kind, architecture, at + header, size
            at += header + size


def reduce(image, architecture):
    """Zeros all device code but the architecture's. Returns the bytes that are left, and zeroed."""
    kept = zeroed = 0
    for name, offset, size in list(sections(image)):
        if name not in (EXECUTABLE, RELOCATABLE):
            continue
        for kind, found, at, length in codes(image, offset, offset + size):
            # The relocatable code was for the linker, which has made the executable code of it.
            if (name, kind, found) == (EXECUTABLE, MACHINE_CODE, architecture):
                kept += length
            else:
                image[at : at + length] = bytes(length)
                zeroed += length
    if kept == 0:
        raise ValueError(f"it has no device code for compute capability {architecture // 10}.{architecture % 10}")
    return kept, zeroed


def make(source, target, architecture):
    """Makes the compressed library `target` of a libnccl.so.2 or of a wheel that has one."""
    with tempfile.NamedTemporaryFile() as copy:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as wheel, wheel.open(MEMBER) as library:
                shutil.copyfileobj(library, copy)
        else:
            with open(source, "rb") as library:
                shutil.copyfileobj(library, copy)
        copy.flush()
        with mmap.mmap(copy.fileno(), 0) as image:
            kept, zeroed = reduce(image, architecture)
        subprocess.run(["strip", "--strip-debug", copy.name], check=True)
        with open(copy.name, "rb") as library, lzma.open(target, "wb", preset=3) as compressed:
            shutil.copyfileobj(library, compressed)
    return kept, zeroed


def unpack(source, folder):
    """Unpacks a compressed library into the folder, unless it is there already."""
    library = pathlib.Path(folder) / "libnccl.so.2"
    source = pathlib.Path(source)
    if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
        library.parent.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(".part")
        with lzma.open(source) as compressed, open(part, "wb") as unpacked:
            shutil.copyfileobj(compressed, unpacked)
        part.rename(library)
    return library.parent
