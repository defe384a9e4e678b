//! Types that the library moves and does not reduce: ranks compare them.

use distcollective::collective::Collective;
use distcollective::comm::{MovedType, RawBlocks, RawMessage, RawOperands, Source, TransferType};
use distcollective::{Communicator, DataType, ErrorKind, Rank, ReduceOperation, Result, Stream};

use crate::ranks::on_ranks;

const COMPLEX64: TransferType = moved("complex64");
const COMPLEX32: TransferType = moved("complex32");

const fn moved(name: &str) -> TransferType {
    TransferType::Moved(MovedType::from_name(name).expect("a type"))
}

/// all_gather of two elements of 8 bytes each, by a list or by one tensor.
fn all_gather(communicator: &Communicator, data_type: TransferType, by_list: bool) -> Result<Vec<u64>> {
    let rank = u64::from(communicator.rank().0);
    let (mut input, mut output) = ([rank, rank + 10], vec![0u64; 4]);
    let (one, out) = (input.as_mut_ptr().cast::<u8>(), output.as_mut_ptr().cast::<u8>());
    let stream = Stream::inline();
    let operands = match by_list {
        true => RawOperands::List { one, list: &[out, out.wrapping_add(16)] },
        false => RawOperands::Pair { input: one, output: out },
    };
    // SAFETY: the arrays live during the call, and have two elements for each rank.
    let work = unsafe { communicator.enqueue(Collective::AllGather, data_type, 2, operands, &stream) }?;
    work.wait()?;
    Ok(output)
}

#[test]
fn they_have_no_transport_type() {
    on_ranks(2, |communicator| {
        let narrow = communicator.with_wire_type(distcollective::WireType::Float16);
        let error = all_gather(&narrow, COMPLEX64, false).expect_err("only float32 has one");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = "the transport type is float16, and the elements are complex64; only float32 has a transport type";
        assert!(error.to_string().ends_with(text), "{error}");
    });
}

#[test]
fn they_move() {
    for by_list in [false, true] {
        let all = on_ranks(2, move |communicator| all_gather(&communicator, COMPLEX64, by_list).expect("equal calls"));
        assert_eq!(all, [[0, 10, 1, 11]; 2]);
    }
}

#[test]
fn ranks_compare_them() {
    let uint8 = TransferType::Data(DataType::Uint8);
    for (by_list, other) in [(false, COMPLEX32), (true, COMPLEX32), (false, DataType::Int64.into()), (true, uint8)] {
        let texts = on_ranks(2, move |communicator| {
            let own = if communicator.rank().0 == 0 { COMPLEX64 } else { other };
            let error = all_gather(&communicator, own, by_list).expect_err("different types");
            assert_eq!(error.kind(), ErrorKind::Disagreement);
            error.to_string()
        });
        for text in texts {
            assert!(text.contains("rank 0 calls all_gather of 2 complex64"), "{text}");
            assert!(text.contains(&format!("rank 1 calls all_gather of 2 {other}")), "{text}");
        }
    }
}

#[test]
fn messages_compare_them() {
    for (sent, wanted) in [(COMPLEX64, COMPLEX32), (COMPLEX32, DataType::Int64.into()), (COMPLEX64, COMPLEX64)] {
        on_ranks(2, move |communicator| {
            let mut elements = [7u64; 3];
            let is_sender = communicator.rank().0 == 0;
            let message = RawMessage {
                address: elements.as_mut_ptr().cast(),
                data_type: if is_sender { sent } else { wanted },
                element_count: 3,
                dst: is_sender.then_some(Rank(1)),
                src: Source::Any,
                tag: 0,
            };
            // SAFETY: the array lives during the call.
            let result = unsafe { communicator.execute_message(&message) };
            match (is_sender, sent == wanted) {
                (true, _) => assert_eq!(result.expect("there is room").element_count, 3),
                (false, true) => assert_eq!(result.expect("a message").element_count, 3),
                (false, false) => {
                    let text = result.expect_err("different types").to_string();
                    assert!(text.contains(&format!("rank 0 sent 3 {sent} with tag 0")), "{text}");
                    assert!(text.contains(&format!("its buffer is {wanted}")), "{text}");
                }
            }
        });
    }
}

#[test]
fn they_are_not_reduced() {
    on_ranks(1, |communicator| {
        for (transfer_type, reduce_op, says) in [
            (COMPLEX64, ReduceOperation::Max, "complex64 has no max"),
            (COMPLEX64, ReduceOperation::Prod, "complex64 has no prod"),
            (moved("int16"), ReduceOperation::Sum, "int16 has no sum"),
        ] {
            let mut x = [1.0f64];
            let output = x.as_mut_ptr().cast::<u8>();
            let operands = RawOperands::Pair { input: output, output };
            let collective = Collective::AllReduce { reduce_op };
            // SAFETY: the call is refused.
            let work = unsafe { communicator.enqueue(collective, transfer_type, 1, operands, &Stream::inline()) };
            let error = work.map(drop).expect_err("a reduction");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(says), "{error}");
        }
    });
}

/// Sums and averages of complex numbers are those of their parts, in every way to make the call.
#[test]
fn complex_numbers_have_sums_and_averages() {
    on_ranks(3, |communicator| {
        let rank = communicator.rank().index();
        let own = [rank as f64, 10.0, -1.5, 0.25 * rank as f64, 4.0, 5.0];
        let stream = Stream::inline();
        for (reduce_op, divisor) in [(ReduceOperation::Sum, 1.0), (ReduceOperation::Avg, 3.0)] {
            let expected = [3.0, 30.0, -4.5, 0.75, 12.0, 15.0].map(|x| x / divisor);
            let (mut x, mut y, mut z) = (own, [0.0; 2], [0.0; 4]);
            let [input, output, part] = [x.as_mut_ptr(), y.as_mut_ptr(), z.as_mut_ptr()].map(<*mut f64>::cast::<u8>);
            let complex128 = moved("complex128");
            let reduce_scatter = Collective::ReduceScatter { reduce_op };
            // Blocks of one, two and no complex numbers.
            let (counts, own_count) = ([1, 2, 0], [1, 2, 0][rank]);
            let places = [0, 16, 48].map(|at| input.wrapping_add(at));
            let blocks = [
                RawBlocks { addresses: &places, counts: &counts },
                RawBlocks { addresses: &[part], counts: &[own_count] },
            ];
            // SAFETY: the arrays have as many elements as the calls say, and outlive them.
            unsafe {
                let pair = RawOperands::Pair { input, output };
                communicator.enqueue(reduce_scatter, complex128, 1, pair, &stream)?.wait()?;
                communicator.enqueue_v(reduce_scatter, complex128, blocks, &stream)?.wait()?;
                let in_place = RawOperands::Pair { input, output: input };
                communicator.enqueue(Collective::AllReduce { reduce_op }, complex128, 3, in_place, &stream)?.wait()?;
            }
            assert_eq!(x, expected);
            assert_eq!(y, expected[2 * rank..][..2]);
            assert_eq!(z[..2 * own_count], expected[2 * [0, 1, 3][rank]..][..2 * own_count]);
        }
        Ok::<(), distcollective::Error>(())
    })
    .into_iter()
    .for_each(|result| result.expect("equal calls"));
}

/// Ranks compare the type of a reduction, too.
#[test]
fn a_complex_sum_is_none_of_floats() {
    on_ranks(2, |communicator| {
        let is_complex = communicator.rank().0 == 0;
        let (data_type, count) = if is_complex { (COMPLEX64, 1) } else { (DataType::Float32.into(), 2) };
        let mut x = [1.0f32; 2];
        let output = x.as_mut_ptr().cast::<u8>();
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let operands = RawOperands::Pair { input: output, output };
        // SAFETY: the array has so many elements, and outlives the work.
        let work = unsafe { communicator.enqueue(sum, data_type, count, operands, &Stream::inline()) };
        let error = work.expect("an argument that fits").wait().expect_err("different types").to_string();
        let says = "rank 0 calls all_reduce(sum) of 1 complex64; rank 1 calls all_reduce(sum) of 2 float32";
        assert!(error.contains(says), "{error}");
    });
}
