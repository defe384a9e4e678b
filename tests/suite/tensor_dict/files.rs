//! Safetensors files: what is written is read back, and a file that breaks a rule is an error with
//! its name.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use distcollective::tensor_dict::{BroadcastOptions, OpaqueType, Tensor};
use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, Result, TensorDict};

use test_support::Folder;

use super::{assert_has, bytes_of, filled, pattern, weights};
use crate::random::Random;
use crate::ranks::on_ranks;

fn map(path: &Path) -> Result<TensorDict> {
    // SAFETY: no test changes a file that it has mapped; `save` replaces it.
    unsafe { TensorDict::map(path) }
}

#[test]
fn a_file_is_read_back_in_both_ways() {
    let folder = Folder::create();
    let path = folder.file("w.safetensors");
    weights(5).save(&path).expect("it is written");
    for dict in [TensorDict::load(&path).expect("it is read"), map(&path).expect("it is mapped")] {
        assert_eq!(dict.len(), weights(5).len());
        for (name, tensor) in weights(5).iter() {
            let read = dict.get(name).expect("it is there");
            assert_eq!(format!("{read:?}"), format!("{tensor:?}"));
            assert!(bytes_of(read) == bytes_of(tensor), "{name} differs");
        }
        assert_eq!(dict.metadata(), weights(5).metadata());
        // Larger types come first, so that each tensor is aligned.
        let bits: Vec<u32> = dict.iter().map(|(_, tensor)| tensor.element_type().bit_len()).collect();
        assert!(bits.is_sorted_by(|a, b| a >= b), "{bits:?}");
        let view = dict.get("int64").expect("it is there").view().expect("it is aligned");
        assert_eq!(view.as_slice::<i64>().expect("int64").len(), 15);
    }
    // A dictionary may be written over the file that it is mapped from.
    let mapped = map(&path).expect("it is mapped");
    mapped.save(&path).expect("it is written");
    assert_eq!(
        bytes_of(mapped.get("pieces").expect("it is there")),
        bytes_of(weights(5).get("pieces").expect("it is"))
    );
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no other file is left");
}

#[test]
fn a_mapped_file_is_a_source_and_is_replaced_as_a_receiver() {
    let folder = Folder::create();
    let path = folder.file("w.safetensors");
    weights(6).save(&path).expect("it is written");
    for src in 0..2 {
        let path = path.clone();
        on_ranks(2, move |communicator| {
            let is_source = communicator.rank() == Rank(src);
            let mut dict = map(&path).expect("it is mapped");
            communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new().src(src)).expect("a broadcast");
            assert_has(&dict, &map(&path).expect("it is mapped"), 0);
            assert!(dict.iter().all(|(_, tensor)| tensor.as_buffer().is_some() != is_source));
            assert!(dict.iter().all(|(_, tensor)| tensor.as_bytes().is_ok()));
        });
    }
}

/// Rank 0 gives what it has mapped, and whose memory cannot be written.
pub fn broadcast_a_mapped_file(communicator: &Communicator) {
    let mut dict = TensorDict::new();
    if communicator.rank() == Rank(0) {
        let folder = Folder::create();
        weights(8).save(folder.file("w.safetensors")).expect("it is written");
        dict = map(&folder.file("w.safetensors")).expect("it is mapped");
        let byte = Tensor::from(Buffer::from(vec![5u8]));
        drop(dict.insert("uint8", byte));
    }
    communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect("a broadcast");
    for (name, tensor) in weights(8).iter().filter(|(name, _)| *name != "uint8") {
        assert!(bytes_of(dict.get(name).expect("it has come")) == bytes_of(tensor), "{name} differs");
    }
    assert_eq!(bytes_of(dict.get("uint8").expect("it has come")), [5]);
}

/// A file with this header, and this many bytes after it.
fn write(path: &Path, header: &str, elements: usize) {
    let mut file = File::create(path).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("it is written");
    file.write_all(header.as_bytes()).expect("it is written");
    file.write_all(&pattern(elements, 0)).expect("it is written");
}

#[test]
fn a_file_that_breaks_a_rule_is_an_error_with_its_name() {
    let folder = Folder::create();
    let path = folder.file("bad.safetensors");
    let refused = |says: &str| {
        for result in [TensorDict::load(&path), map(&path)] {
            let error = result.expect_err(says);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())) && text.contains(says), "{says}: {text}");
        }
    };
    for (bytes, says) in [
        (&b""[..], "it has 0 bytes; a safetensors file begins with the 8 of its header's length"),
        (b"\x01\x00\x00", "it has 3 bytes"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "promise a header of 18446744073709551615 bytes, and 0 follow"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "promise a header of 16 bytes, and 2 follow"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "its header cannot be read"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00\xff\xfe", "its header cannot be read"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{}more", "promises 0 bytes of elements, and 4 follow"),
    ] {
        fs::write(&path, bytes).expect("a file");
        refused(says);
    }
    let half = u64::MAX / 2;
    for (header, elements, says) in [
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.to_owned(),
            7,
            "promises 8 bytes of elements, and 7",
        ),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.to_owned(), 4, "its header cannot be read"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#.to_owned(), 8, "its header cannot be read"),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#.to_owned(), 12, "its header cannot be read"),
        (r#"{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}"#.to_owned(), 8, "its header cannot be read"),
        (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#.to_owned(), 1, "its header cannot be read"),
        (r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#.to_owned(), 1, "its header cannot be read"),
        (
            format!(r#"{{"a":{{"dtype":"U8","shape":[{half},4],"data_offsets":[0,1]}}}}"#),
            1,
            "its header cannot be read",
        ),
        (
            format!(r#"{{"a":{{"dtype":"U8","shape":[{half}],"data_offsets":[0,{half}]}}}}"#),
            1,
            "its header cannot be read",
        ),
        (r#"{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#.to_owned(), 1, "tensor \"a\": "),
        ("[".repeat(100_000), 0, "its header cannot be read"),
    ] {
        write(&path, &header, elements);
        refused(says);
    }
    // Every length of a file that was cut.
    weights(1).save(&path).expect("it is written");
    let whole = fs::read(&path).expect("it is read");
    for len in (0..4000).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).expect("a file");
        assert!(TensorDict::load(&path).is_err() && map(&path).is_err(), "cut to {len} bytes");
    }
    for missing in [TensorDict::load(folder.file("none")), map(&folder.file("none"))] {
        let error = missing.expect_err("there is none");
        assert!(
            error.kind() == ErrorKind::System && error.to_string().contains("none: it cannot be read: "),
            "{error}"
        );
    }
    let error = TensorDict::load(folder.path()).expect_err("a folder");
    assert!(error.to_string().contains("it is not a regular file"), "{error}");
}

/// Files with random changes: of the header's length, of bytes and digits of the header, and parts
/// that are cut out or come twice. Each is an error, or has tensors that are inside of the file.
#[test]
fn a_changed_file_is_read_within_its_bounds_or_is_an_error() {
    let folder = Folder::create();
    let path = folder.file("w.safetensors");
    let mut dict = TensorDict::new();
    for (number, data_type) in DataType::ALL.into_iter().enumerate() {
        dict.insert(format!("{data_type}"), filled(data_type, &[2, number as i64], number));
    }
    dict.metadata_mut().insert("format".to_owned(), "pt".to_owned());
    dict.save(&path).expect("it is written");
    let whole = fs::read(&path).expect("it is read");
    let header_end = 8 + u64::from_le_bytes(*whole.first_chunk().expect("a length")) as usize;
    let mut random = Random(17);
    let cases = if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 200_000 } else { 3_000 };
    let mut read = 0;
    for _ in 0..cases {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(header_end.min(bytes.len()));
            let end = (at + 1 + random.below(12)).min(bytes.len());
            match random.below(5) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] = b"0123456789,:{}[]\""[random.below(17)],
                2 => drop(bytes.drain(at..end)),
                3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
                _ => bytes[random.below(3)] = random.next() as u8,
            }
        }
        fs::write(&path, &bytes).expect("a file");
        let [loaded, mapped] = [TensorDict::load(&path), map(&path)];
        assert_eq!(loaded.is_ok(), mapped.is_ok());
        for dict in [loaded, mapped].into_iter().flatten() {
            assert!(dict.byte_len() <= bytes.len() as u64);
            dict.iter().for_each(|(_, tensor)| assert_eq!(bytes_of(tensor).len(), tensor.byte_len()));
            read += 1;
        }
    }
    assert!(read > cases / 100, "{read} of {cases} are still files");
}

#[test]
fn tensors_that_the_format_does_not_have_are_not_written() {
    let folder = Folder::create();
    let path = folder.file("w.safetensors");
    fs::write(&path, "kept").expect("a file");
    let dict = |name: &str, tensor: Tensor| {
        let mut dict = TensorDict::new();
        dict.insert(name, tensor);
        dict
    };
    let opaque = |name: &str, bits| {
        let opaque = OpaqueType::new(name, bits).expect("a type");
        Tensor::opaque(opaque, [1], vec![0u8; bits as usize / 8]).expect("bytes")
    };
    for (dict, says) in [
        (dict("a", opaque("complex", 128)), "tensor \"a\": element type complex of 128 bits is none of the format's"),
        (dict("a", opaque("F64", 32)), "element type F64 of 32 bits is none of the format's"),
        (dict("__metadata__", opaque("F64", 64)), "which the format keeps for texts"),
    ] {
        let error = dict.save(&path).expect_err(says);
        assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains(says), "{error}");
    }
    let error = weights(0).save(folder.file("no/such/folder")).expect_err("no folder");
    assert!(error.kind() == ErrorKind::System && error.to_string().contains("it cannot be written"), "{error}");
    assert_eq!(fs::read(&path).expect("it is read"), b"kept");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "no other file is left");
}

/// The file is sparse: its tensor takes no place on the disk, and the source needs no memory for
/// it.
#[test]
fn a_tensor_that_is_larger_than_memory_is_an_error_on_every_rank() {
    let folder = Folder::create();
    let path = folder.file("large.safetensors");
    let len: u64 = 1 << 42;
    let header = format!(r#"{{"large":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{len}]}}}}"#, len / 4);
    write(&path, &header, 0);
    let file = File::options().write(true).open(&path).expect("a file");
    if let Err(error) = file.set_len(8 + header.len() as u64 + len) {
        test_support::skip(&format!("the file system has no sparse file of {len} bytes: {error}"));
        return;
    }
    let error = TensorDict::load(&path).expect_err("no memory");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(
        error.to_string().contains("large.safetensors: no memory for its tensors of 4398046511104 bytes"),
        "{error}"
    );
    let errors = on_ranks(3, move |communicator| {
        let is_source = communicator.rank() == Rank(0);
        let mut dict = if is_source { map(&path).expect("it is mapped") } else { TensorDict::new() };
        dict.insert("small", filled(DataType::Uint8, &[4], communicator.rank().index()));
        let error = communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new()).expect_err("no memory");
        let small = pattern(4, communicator.rank().index());
        assert_eq!(dict.get("small").expect("it is there").as_bytes().expect("host"), small);
        assert_eq!(dict.len(), 1 + usize::from(is_source));
        let mut small = TensorDict::new();
        small.insert("small", Buffer::from(vec![1u8]));
        communicator.broadcast_tensor_dict(&mut small, &BroadcastOptions::new()).expect("the communicator works");
        error
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::System);
        assert!(error.to_string().contains("no memory for new tensors of 4398046511104 bytes"), "{error}");
    }
}
