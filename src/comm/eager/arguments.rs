//! From the arguments of an eager call to the call that a backend gets.

use crate::collective::{Call, Collective, Geometry, Side, check_type, check_wire_type};
use crate::comm::{Communicator, Request};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail};
use crate::memory::{Address, RawTensor, TensorView, TensorViewMut};
use crate::rank::{GroupRank, Rank};
use crate::util::text::count_of;

/// The type and the number of elements of a buffer; `None` if the caller gives no buffer.
type Given = Option<(DataType, usize)>;

impl Communicator {
    /// A collective on these buffers, with a null address where there is none. Checks all that the
    /// arguments show without the addresses.
    pub(super) fn eager_request(
        &self,
        collective: Collective<Rank>,
        sides: [Option<&RawTensor>; 2],
    ) -> Result<Request<'static>> {
        let call = self.call(collective, sides.map(|raw| raw.map(|raw| (raw.data_type, raw.element_count()))));
        let none = Address { pointer: std::ptr::null_mut(), space: self.space() };
        let sides = sides.map(|raw| raw.map_or(none, RawTensor::located));
        Ok(Request::new(call.map_err(|error| self.label(&collective, error))?, sides, self.deadline()))
    }

    /// Says in an error which rank and operation it is about.
    pub(super) fn label(&self, collective: &Collective<Rank>, error: Error) -> Error {
        self.about(&collective.operation(), error)
    }

    /// The call of an operation on buffers of these types and lengths.
    fn call(&self, collective: Collective<Rank>, [input, output]: [Given; 2]) -> Result<Call> {
        let n = self.world_size() as usize;
        let ranks = || count_of(n, "rank");
        if let Some(root) = collective.root() {
            self.check_rank("root", root)?;
        }
        // All ranks of a communicator are a group in which ranks have the same numbers.
        let collective = collective.with_root(|rank| GroupRank(rank.0));
        let Some((data_type, _)) = input.or(output) else { bail!(InvalidBuffer, "there is no buffer") };
        check_wire_type(collective.operation(), self.wire_type)?;
        check_type(collective.reduce_op(), self.wire_type, data_type)?;
        self.check_reduction(collective.reduce_op())?;

        let Geometry { input: input_side, output: output_side } = collective.operation().geometry();
        // The length of a block is that of a buffer with one block. Without one, it is a part of
        // the other's.
        let is_of_output = input.is_none() || output.is_some() && input_side.is_per_rank && !output_side.is_per_rank;
        let (name, given, side) =
            if is_of_output { ("output", output, output_side) } else { ("input", input, input_side) };
        let elements = given.map_or(0, |(_, elements)| elements);
        if side.is_per_rank && elements % n != 0 {
            let elements = count_of(elements, "element");
            bail!(InvalidBuffer, "the {name} has {elements}, which is not a multiple of {}", ranks())
        }
        let block_elements = if side.is_per_rank { elements / n } else { elements };
        let call = Call::of_blocks(collective, data_type, block_elements).sent_as(self.wire_type, n);
        let check = |name, given: Given, side: Side, is_used: bool| match given {
            None if is_used => bail!(InvalidBuffer, "{}", call.lacks(Some(GroupRank(self.rank().0)), name)),
            Some((other, _)) if other != data_type => {
                bail!(InvalidBuffer, "the input is {data_type} and the output {other}")
            }
            Some((_, elements)) if elements != block_elements * side.blocks(n) => {
                let (elements, expected) = (count_of(elements, "element"), block_elements * side.blocks(n));
                bail!(InvalidBuffer, "the {name} has {elements}; with {} it must have {expected}", ranks())
            }
            _ => Ok(()),
        };
        let rank = GroupRank(self.rank().0);
        check("input", input, input_side, call.reads_input(rank))?;
        check("output", output, output_side, call.writes_output(rank))?;
        Ok(call)
    }

    /// A view of an argument that is read.
    pub(super) fn view<'a>(
        &self,
        collective: &Collective<Rank>,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
    ) -> Result<TensorView<'a>> {
        input.try_into().map_err(|error| self.label(collective, error.into()))
    }

    /// A view of an argument that is written.
    pub(super) fn view_mut<'a>(
        &self,
        collective: &Collective<Rank>,
        output: impl TryInto<TensorViewMut<'a>, Error: Into<Error>>,
    ) -> Result<TensorViewMut<'a>> {
        output.try_into().map_err(|error| self.label(collective, error.into()))
    }
}
