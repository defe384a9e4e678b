//! Types that the library moves and does not reduce: ranks compare them.

use distcollective::collective::Collective;
use distcollective::comm::{MovedType, RawMessage, RawOperands, Source, TransferType};
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
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let mut x = [1.0f64];
        let output = x.as_mut_ptr().cast::<u8>();
        let operands = RawOperands::Pair { input: output, output };
        // SAFETY: the call is refused.
        let work = unsafe { communicator.enqueue(sum, COMPLEX64, 1, operands, &Stream::inline()) };
        let error = work.map(drop).expect_err("a reduction");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("complex64 is only moved, and this operation reduces"), "{error}");
    });
}
