use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use distcollective::DataType;
use distcollective::tensor::Shape;

use super::header::{Descriptor, Header};
use super::read_from;

/// Counts the bytes that this thread has allocated.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each function calls the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        MOST.set(MOST.get().max(LIVE.get()));
        // SAFETY: the caller promises what the system allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // Memory may have come from another thread.
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The result of `work`, and the most bytes that it had allocated at once.
fn with_most_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LIVE.set(0);
    MOST.set(0);
    let result = work();
    (result, MOST.get())
}

/// A file in one of the formats.
fn file(major: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
    let len = (dictionary.len() as u32).to_le_bytes();
    let len = if major == 1 { &len[..2] } else { &len[..] };
    [&b"\x93NUMPY"[..], &[major, 0], len, dictionary.as_bytes(), data].concat()
}

fn read(bytes: &[u8], wanted: Option<DataType>) -> Result<(DataType, Shape, Vec<u8>), String> {
    let buffer = read_from(&mut &bytes[..], bytes.len() as u64, wanted)?;
    Ok((buffer.data_type(), buffer.shape(), buffer.as_bytes().expect("host memory").to_vec()))
}

fn dictionary(descr: &str, order: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}")
}

/// The error of a file with this dictionary and 24 bytes of data.
fn refusal(dictionary: &str) -> String {
    read(&file(1, dictionary, &[0; 24]), None).expect_err(dictionary)
}

#[test]
fn every_format_order_and_endianness_is_read() {
    let little: Vec<u8> = (0..6u16).flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = (0..6u16).flat_map(u16::to_be_bytes).collect();
    // The transpose of [[0, 1, 2], [3, 4, 5]] in row-major order.
    let columns: Vec<u8> = [0u16, 3, 1, 4, 2, 5].into_iter().flat_map(u16::to_be_bytes).collect();
    let expected = (DataType::Float16, Shape::new(&[2, 3]).expect("a shape"), little.clone());
    for major in [1, 2, 3] {
        for (descr, order, data) in [
            ("'<f2'", "False", &little),
            ("\"=f2\"", "False", &little),
            ("'>f2'", "False", &big),
            ("'>f2'", "True", &columns),
        ] {
            let bytes = file(major, &dictionary(descr, order, "(2, 3)"), data);
            assert_eq!(read(&bytes, None).as_ref(), Ok(&expected), "{major}.0 {descr} {order}");
        }
    }
    // Any order of the entries, any white space, and the numbers of Python 2.
    let other = " { 'shape' :( 2L ,3L , ),'descr':'<f2' , \"fortran_order\":False}\n";
    assert_eq!(read(&file(1, other, &little), None), Ok(expected));
}

#[test]
fn shapes_of_every_length_are_read_in_fortrans_order() {
    for (dims, text) in
        [(&[24][..], "(24,)"), (&[2, 3, 4], "(2, 3, 4)"), (&[1, 2, 1, 3, 1, 4, 1, 1], "(1,2,1,3,1,4,1,1)")]
    {
        // Element i of the file has the value i; its index counts with the first digit fastest.
        let bytes = file(1, &dictionary("'|u1'", "True", text), &(0..24).collect::<Vec<u8>>());
        let (_, shape, elements) = read(&bytes, None).expect(text);
        assert_eq!(shape.as_slice(), dims);
        for (at, element) in elements.iter().enumerate() {
            let (mut rest, mut place, mut stride) = (at, 0, 24);
            for dim in dims {
                stride /= dim;
                let index = rest / stride;
                rest %= stride;
                place += index * dims.iter().take_while(|d| !std::ptr::eq(*d, dim)).product::<usize>();
            }
            assert_eq!(usize::from(*element), place, "{text} at {at}");
        }
    }
    assert_eq!(
        read(&file(1, &dictionary("'>i8'", "True", "()"), &1u64.to_be_bytes()), None).expect("0-d").2,
        1u64.to_le_bytes()
    );
}

#[test]
fn every_type_is_written_and_read_back() {
    for data_type in DataType::ALL {
        let descriptor = Descriptor::of(data_type).expect("a description");
        let shape = Shape::new(&[3]).expect("a shape");
        let mut bytes = Header { descriptor, fortran_order: false, shape }.to_bytes();
        assert!(bytes.len().is_multiple_of(64) && bytes.ends_with(b" \n"), "{data_type}");
        let data: Vec<u8> = (0..3 * data_type.byte_len() as u8).collect();
        bytes.extend(&data);
        assert_eq!(read(&bytes, Some(data_type)), Ok((data_type, shape, data)));
    }
    let opaque = file(1, &dictionary("'|V2'", "False", "(2,)"), &[1, 2, 3, 4]);
    assert_eq!(read(&opaque, Some(DataType::Bfloat16)).expect("ml_dtypes writes such").2, [1, 2, 3, 4]);
}

#[test]
fn a_type_that_collectives_do_not_take_is_named() {
    const TAKE: &str = "which collectives do not take; they take float64, float32, float16, int64, int32, int8, uint64, uint32, \
         uint8 and bool";
    for (descr, says) in [
        ("'<f16'", format!("it holds float128, {TAKE}; convert it first: x.astype('float64')")),
        (
            "'<u2'",
            format!(
                "it holds uint16, {TAKE}; with --dtype bfloat16 they are bfloat16's bits; else convert it first: x.astype('int32')"
            ),
        ),
        ("'<c16'", format!("it holds complex128, {TAKE}")),
        ("'<U7'", format!("it holds text, {TAKE}")),
        ("'|O'", format!("it holds Python objects, {TAKE}")),
        ("'<M8[ns]'", format!("it holds dates, {TAKE}")),
        (
            "'|V2'",
            format!(
                "it holds elements of 2 bytes without a type, {TAKE}; give --dtype bfloat16 if they are bfloat16's bits"
            ),
        ),
        ("[('a', '<f4'), ('b', '<i4')]", format!("it holds records of several fields, {TAKE}")),
    ] {
        assert_eq!(refusal(&dictionary(descr, "False", "(3,)")), says);
    }
    let float32 = file(1, &dictionary("'<f4'", "False", "(6,)"), &[0; 24]);
    for (wanted, says) in [
        (DataType::Int8, "it holds float32, not int8"),
        (DataType::Bfloat16, "it holds float32, not bfloat16, which numpy keeps as uint16"),
    ] {
        assert_eq!(read(&float32, Some(wanted)).expect_err("another type"), says);
    }
}

#[test]
fn a_damaged_header_is_refused() {
    for (dictionary, says) in [
        ("", "where '{' is expected"),
        ("{'descr': '<f4', 'shape': (6,)}", "descr, fortran_order or shape is missing"),
        ("{'descr': '<f4', 'descr': '<f4'}", "an entry occurs twice"),
        ("{'descr': '<f4', 'order': 'C'}", "the entries are descr, fortran_order and shape, and no other"),
        (&dictionary("'float32'", "False", "(6,)"), "descr is no element type such as '<f4'"),
        (&dictionary("'<f4 '", "False", "(6,)"), "descr is no element type such as '<f4'"),
        (&dictionary("'<f99999999999999999999'", "False", "(6,)"), "descr is no element type such as '<f4'"),
        (&dictionary("'<f4'", "0", "(6,)"), "where True or False is expected"),
        (&dictionary("'<f4'", "False", "(6)"), "where ',' is expected"),
        (&dictionary("'<f4'", "False", "[6]"), "where '(' is expected"),
        (&dictionary("'<f4'", "False", "(-6,)"), "where a dimension is expected"),
        (&dictionary("'<f4'", "False", "(6, 1 2)"), "where ')' is expected"),
        (&(dictionary("'<f4'", "False", "(6,)") + "x"), "where the end is expected"),
        (&dictionary("'<f4'", "False", "(1,1,1,1,1,1,1,1,6)"), "more than 8 dimensions"),
        (&dictionary("'<f4'", "False", "(2305843009213693951,)"), "has more elements than memory can hold"),
        (&dictionary("'<f4'", "False", "(4294967296, 4294967296)"), "has more elements than memory can hold"),
        (&dictionary("'<f4'", "False", "(99999999999999999999,)"), "larger than memory can be"),
        (&dictionary("'<f4'", "False", "(7,)"), "promises float32 [7], 28 bytes of data, and 24 follow"),
        (
            &dictionary("'<f4'", "True", "(0, 9223372036854775807, 9223372036854775807)"),
            "0 bytes of data, and 24 follow",
        ),
    ] {
        let error = refusal(dictionary);
        assert!(error.contains(says), "{dictionary}: {error}");
    }
    for (bytes, says) in [
        (&b"hello"[..], "it is not an .npy file, because it ends within the header; numpy.save writes such files"),
        (b"hello, hello", "it is not an .npy file, which begins with \"\\x93NUMPY\"; numpy.save writes such files"),
        (b"\x93NUMPY\x01\x00\x80\x00{'descr", "because it ends within the header"),
        (b"\x93NUMPY\x04\x00\x80\x00{'descr", "it has the .npy format 4.0; 1.0, 2.0 and 3.0 are known"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "its header has 4294967295 bytes, and at most 10000 are read"),
        (b"\x93NUMPY\x01\x00\x11\x27{", "its header has 10001 bytes, and at most 10000 are read"),
    ] {
        let error = read(bytes, None).expect_err("no file");
        assert!(error.contains(says), "{error}");
    }
    let empty = file(1, &dictionary("'<f4'", "True", "(2, 0, 9223372036854775807, 9223372036854775807)"), &[]);
    assert_eq!(read(&empty, None).map(|(_, _, data)| data.len()), Ok(0));
}

#[test]
fn a_file_takes_as_much_memory_as_it_is_long() {
    for (descr, order) in [("'<f4'", "False"), ("'>f4'", "False"), ("'>f4'", "True"), ("'|u1'", "True")] {
        let shape = if descr == "'|u1'" { "(4096, 1024)" } else { "(1024, 1024)" };
        let bytes = file(1, &dictionary(descr, order, shape), &vec![1; 4 << 20]);
        let (read, most) = with_most_bytes(|| read_from(&mut &bytes[..], bytes.len() as u64, None).map(|_| ()));
        assert_eq!(read, Ok(()));
        assert!(most < (4 << 20) + (16 << 10), "{descr} {order}: {most} bytes");
    }
}

/// Numbers that look random, the same in every run (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }

    /// Changes some bytes of a file, most of them in its header.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const WORDS: [&[u8]; 12] = [
            b"'",
            b"\\",
            b"[[[[[[[[[[[[[[[[",
            b"((((",
            b"{",
            b"}",
            b"9223372036854775807",
            b"0, ",
            b"True",
            b"'>i8'",
            b"\xff\xff",
            b"\n",
        ];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len().min(140));
            let until = (at + self.below(24)).min(bytes.len());
            match self.below(6) {
                0 => bytes[at] = self.below(256) as u8,
                1 => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.drain(at..until)),
                3 => bytes.extend_from_within(at..until),
                4 => drop(bytes.splice(at..at, WORDS[self.below(WORDS.len())].iter().copied())),
                _ => drop(bytes.splice(at..until, b"1".repeat(self.below(3000)))),
            }
            if bytes.is_empty() {
                return;
            }
        }
    }
}

/// No panic, an error is one line, and no file takes more than 64 times its length.
#[test]
fn mutated_files_are_read_or_refused_in_little_memory() {
    const FILES: usize = 100_000;
    let seeds: Vec<Vec<u8>> = [
        ("'<f4'", "False", "(2, 3)"),
        ("'>i8'", "True", "(3,)"),
        ("'|u1'", "True", "(2, 3, 4)"),
        ("'<f8'", "False", "(3,)"),
    ]
    .into_iter()
    .flat_map(|(descr, order, shape)| [1, 2, 3].map(|major| file(major, &dictionary(descr, order, shape), &[7; 24])))
    .collect();
    let (mut random, mut outcomes) = (Random(15), [0, 0]);
    for number in 0..FILES {
        let mut bytes = seeds[number % seeds.len()].clone();
        random.mutate(&mut bytes);
        let wanted = DataType::ALL.into_iter().nth(random.below(2 * DataType::ALL.len()));
        let (result, most) =
            with_most_bytes(|| read_from(&mut &bytes[..], bytes.len() as u64, wanted).map(|buffer| buffer.byte_len()));
        let text = bytes.escape_ascii();
        assert!(most <= 64 * bytes.len(), "{most} bytes for {text}");
        match &result {
            Ok(byte_len) => assert!(*byte_len < bytes.len(), "{text}"),
            Err(error) => assert!(error.lines().count() == 1 && error.len() < 400, "{text}: {error}"),
        }
        outcomes[usize::from(result.is_ok())] += 1;
    }
    assert!(outcomes.iter().all(|outcome| *outcome > FILES / 100), "{outcomes:?}");
}
