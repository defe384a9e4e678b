"""A small libnccl keeps the code of one architecture, and its length."""

import lzma
import pathlib
import struct
import tempfile
import unittest
import zipfile

from gpu_check import slim

CODE = 64


def fat_binary(*entries):
    """A fat binary of entries: kind, architecture and a byte that the code consists of."""
    parts = [
        struct.pack("<HHIQ12xI", kind, 1, 64, CODE, architecture).ljust(64, b"\0") + bytes([byte]) * CODE
        for kind, architecture, byte in entries
    ]
    body = b"".join(parts)
    return struct.pack("<IHHQ", slim.MAGIC, 1, 16, len(body)) + body


def library(**contents):
    """A 64-bit ELF file with these sections and one for their names."""
    names = {"shstrtab": ".shstrtab", "text": ".text", "executable": slim.EXECUTABLE, "relocatable": slim.RELOCATABLE}
    strings = b"\0" + b"".join(names[key].encode() + b"\0" for key in (*contents, "shstrtab"))
    bodies = [*contents.values(), strings]
    image, headers, name = bytearray(64), [], 1
    for key, body in zip((*contents, "shstrtab"), bodies):
        headers.append(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, len(image), len(body), 0, 0, 8, 0))
        name += len(names[key]) + 1
        image += body + bytes(-len(body) % 8)
    image[:16] = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    struct.pack_into("<Q", image, 0x28, len(image))
    struct.pack_into("<HHH", image, 0x3A, 64, len(headers), len(headers) - 1)
    return image + b"".join(headers)


class Slim(unittest.TestCase):
    def setUp(self):
        # Machine code for two architectures and PTX; the second fat binary lies behind zeros.
        executable = fat_binary((2, 80, 1), (2, 90, 2)) + bytes(24) + fat_binary((1, 90, 3), (2, 90, 4))
        self.image = library(text=b"\7" * 64, executable=executable, relocatable=fat_binary((2, 90, 5)))

    def left(self, image):
        return [byte for byte in range(1, 8) if bytes([byte]) * CODE in image]

    def test_only_the_machine_code_of_one_architecture_is_left(self):
        length = len(self.image)
        self.assertEqual(self.left(self.image), [1, 2, 3, 4, 5, 7])
        self.assertEqual(slim.reduce(self.image, 90), (2 * CODE, 3 * CODE))
        self.assertEqual(self.left(self.image), [2, 4, 7])
        self.assertEqual(len(self.image), length)

    def test_an_architecture_that_is_not_there_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no device code for compute capability 10.3"):
            slim.reduce(self.image, 103)

    def test_what_is_no_library_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no 64-bit ELF file"):
            slim.reduce(bytearray(b"text" * 100), 90)

    def test_it_is_unpacked_once(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            packed = folder / "libnccl.so.2.xz"
            packed.write_bytes(lzma.compress(b"first"))
            library = slim.unpack(packed, folder / "nccl") / "libnccl.so.2"
            self.assertEqual(library.read_bytes(), b"first")
            library.write_bytes(b"unpacked before")
            slim.unpack(packed, folder / "nccl")
            self.assertEqual(library.read_bytes(), b"unpacked before")
