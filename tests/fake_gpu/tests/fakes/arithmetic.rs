//! The numbers of reductions.

use crate::child::test_in_child;
use crate::cuda::{Element, download, upload};
use crate::nccl::*;

/// A reduction of one element on each rank: its type, the operation, the elements and the result.
type Case<'a, T> = (i32, i32, &'a [T], T);

/// Makes the reductions, all among as many ranks, on the same communicators.
fn check<T: Element + PartialEq + std::fmt::Debug + Send + Sync + 'static>(cases: &[Case<'_, T>]) {
    let given: Vec<_> = cases.iter().map(|(kind, op, elements, _)| (*kind, *op, elements.to_vec())).collect();
    let results = on_ranks(cases[0].2.len() as i32, true, move |rank| {
        let reduced = given.iter().map(|(kind, op, elements)| {
            let at = upload(&[elements[rank.rank as usize]]);
            rank.done((nccl().all_reduce)(at, at, 1, *kind, *op, rank.communicator, rank.stream));
            download::<T>(at, 1)[0]
        });
        let reduced: Vec<T> = reduced.collect();
        rank.end();
        reduced
    });
    let expected: Vec<T> = cases.iter().map(|(.., result)| *result).collect();
    assert!(results.iter().all(|result| *result == expected), "{results:?} {expected:?}");
}

test_in_child!(integers_wrap_and_averages_truncate, Current, &[], || {
    check(&[(INT8, SUM, &[100i8, 100], -56), (INT8, AVG, &[100, 100], -28), (INT8, MAX, &[-1, 1], 1)]);
    check(&[(INT32, AVG, &[-3i32, -4], -3)]);
    check(&[(UINT8, AVG, &[255u8, 2], 0), (UINT8, PROD, &[16, 17], 16), (UINT8, MAX, &[255, 1], 255)]);
    check(&[(UINT32, MIN, &[u32::MAX, 1], 1)]);
    check(&[(INT64, SUM, &[i64::MAX, 1], i64::MIN), (INT64, MIN, &[i64::MIN, 1], i64::MIN)]);
    check(&[(UINT64, AVG, &[u64::MAX, 0], u64::MAX / 2)]);
});

test_in_child!(floats_are_rounded_at_each_step, Current, &[], || {
    // 2^-24 is float16's least subnormal. 60000 does not overflow in an average.
    check(&[
        (FLOAT16, SUM, &[0x0001u16, 0x0001], 0x0002),
        (FLOAT16, SUM, &[0x7bff, 0x7bff], 0x7c00),
        (FLOAT16, PROD, &[0x0001, 0x3800], 0),
        (FLOAT16, MAX, &[0x7e00, 0xbc00], 0xbc00),
        (FLOAT16, MIN, &[0x3c00, 0x7e00], 0x3c00),
        (FLOAT16, AVG, &[0x7b53, 0x7b53], 0x7b53),
        (BFLOAT16, SUM, &[0x3f80, 0x4000], 0x4040),
        (BFLOAT16, SUM, &[0x4380, 0x3f80], 0x4380),
    ]);
    // 2048 + 1 is 2048 in float16, and so is that + 1. 7/3 is nearest to 0x40ab, and 7 times the
    // float16 nearest to 1/3 is below.
    check(&[(FLOAT16, SUM, &[0x6800u16, 0x3c00, 0x3c00], 0x6800), (FLOAT16, AVG, &[0x4700, 0, 0], 0x40aa)]);
    check(&[(FLOAT32, SUM, &[16_777_216.0f32, 1.0, 1.0], 16_777_216.0)]);
    check(&[(FLOAT32, AVG, &[f32::MAX, f32::MAX], f32::MAX)]);
    check(&[(FLOAT64, SUM, &[0.1f64, 0.2], 0.1 + 0.2)]);
});

test_in_child!(float8_is_rounded_at_each_step, Current, &[], || {
    // Eights saturate, infinity too. 448 is 0x7e and 1.0 is 0x38 in E4M3; 57344 is 0x7b, infinity
    // 0x7c and 1.0 0x3c in E5M2.
    check(&[
        (FLOAT8_E4M3, SUM, &[0x7eu8, 0x7e], 0x7e),
        (FLOAT8_E4M3, SUM, &[0x38, 0x38], 0x40),
        (FLOAT8_E4M3, SUM, &[0x7f, 0x38], 0x7f),
        (FLOAT8_E4M3, MAX, &[0x7f, 0x38], 0x38),
        (FLOAT8_E5M2, SUM, &[0x7c, 0x3c], 0x7b),
        (FLOAT8_E5M2, SUM, &[0xbc, 0x3c], 0),
        (FLOAT8_E5M2, PROD, &[0xc0, 0x40], 0xc4),
    ]);
});

test_in_child!(the_order_changes_from_chunk_to_chunk, Current, &[], || {
    // 2^24 + 1 + 1 depends on the order.
    let results = on_ranks(3, true, |rank| {
        let at = upload(&[if rank.rank == 0 { 16_777_216.0f32 } else { 1.0 }; 48]);
        rank.done(rank.all_reduce(at, 48));
        download::<f32>(at, 48)
    });
    assert_eq!((results[0][0], results[0][16], results[0][32]), (16_777_216.0, 16_777_218.0, 16_777_216.0));
    assert!(results.iter().all(|result| *result == results[0]));
});

test_in_child!(float8_is_reduced_on_new_devices_only, Current, &[("FAKE_CUDA_SM", "89")], || {
    on_ranks(2, true, |rank| {
        let (from, to) = (upload(&[0x38u8]), upload(&[0u8; 2]));
        let (communicator, stream) = (rank.communicator, rank.stream);
        assert_eq!((nccl().all_reduce)(from, to, 1, FLOAT8_E4M3, SUM, communicator, stream), INVALID_ARGUMENT);
        rank.done((nccl().all_gather)(from, to, 1, FLOAT8_E4M3, communicator, stream));
        assert_eq!(download::<u8>(to, 2), [0x38, 0x38]);
    });
});
