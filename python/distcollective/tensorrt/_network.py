"""The description of a network."""

from numbers import Integral
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Type, Union

from .. import _core
from ..errors import ArgumentError
from ._enums import (
    CollectiveOperation,
    DataType,
    ElementWiseOperation,
    LayerType,
    NetworkDefinitionCreationFlag,
    ReduceOperation,
    TensorLocation,
)
from ._errors import Guarded
from ._plugins import Adapter, Plugin
from ._values import Dims, Permutation, Weights, dims_of, elements_of

#: The ranks that take part: all (empty), those of a list, or those of a list of equally long lists.
Groups = Union[None, Sequence[int], Sequence[Sequence[int]]]


class ITensor(Guarded):
    """A tensor of a network: an input, or what a layer computes."""

    def __init__(self, network: _core.Network, tensor: _core.TensorId) -> None:
        self._network = network
        self._id = tensor

    @property
    def name(self) -> str:
        """The name. An engine's inputs and outputs are found by it."""
        return self._network.tensor_name(self._id)

    @name.setter
    def name(self, name: str) -> None:
        self._network.set_tensor_name(self._id, name)

    @property
    def dtype(self) -> DataType:
        """The type of the elements."""
        return DataType(self._network.tensor_data_type(self._id))

    @property
    def shape(self) -> Dims:
        """The shape, as far as the network tells it: -1 where it depends on a dynamic dimension."""
        return Dims(self._network.tensor_dims(self._id))

    @property
    def is_network_input(self) -> bool:
        """Whether it is an input of the network."""
        return self._id in self._network.inputs()

    @property
    def is_network_output(self) -> bool:
        """Whether it is an output of the network."""
        return self._id in self._network.outputs()

    @property
    def is_shape_tensor(self) -> bool:
        """False: no layer here computes shapes."""
        return False

    @property
    def is_execution_tensor(self) -> bool:
        """True: every tensor has elements at run time."""
        return True

    @property
    def location(self) -> TensorLocation:
        """Where the tensor is: with the communicator."""
        return TensorLocation.DEVICE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ITensor) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"<ITensor {self.name!r}>"


class ILayer(Guarded):
    """A layer of a network."""

    def __init__(self, network: _core.Network, layer: _core.LayerId) -> None:
        self._network = network
        self._layer = _core.Layer(network, layer)

    @property
    def name(self) -> str:
        """The name, which errors and ``inspect`` use. Layers of a network have different names."""
        return self._layer.name()

    @name.setter
    def name(self, name: str) -> None:
        self._layer.set_name(name)

    @property
    def metadata(self) -> str:
        """Text of the program's, which has no effect."""
        return self._layer.metadata()

    @metadata.setter
    def metadata(self, metadata: str) -> None:
        self._layer.set_metadata(metadata)

    @property
    def type(self) -> LayerType:
        """What kind of layer it is."""
        return LayerType(self._layer.kind())

    @property
    def num_ranks(self) -> int:
        """The number of ranks of a collective; 1 for another layer."""
        return self._layer.rank_count()

    @num_ranks.setter
    def num_ranks(self, count: int) -> None:
        self._layer.set_rank_count(count)

    @property
    def num_inputs(self) -> int:
        """The number of tensors that it reads."""
        return len(self._layer.inputs())

    @property
    def num_outputs(self) -> int:
        """The number of tensors that it computes."""
        return len(self._layer.outputs())

    def get_input(self, index: int) -> Optional[ITensor]:
        """A tensor that it reads; None if it has fewer."""
        return self._tensor(self._layer.inputs(), index)

    def get_output(self, index: int) -> ITensor:
        """A tensor that it computes. An index that it does not have is an ``IndexError``."""
        tensor = self._tensor(self._layer.outputs(), index)
        if tensor is None:
            raise IndexError(f"layer {self.name!r} has no output {index}; it has {self.num_outputs}")
        return tensor

    def set_input(self, index: int, tensor: ITensor) -> None:
        """Give it another tensor to read."""
        self._layer.set_input(index, _id_of(tensor, "tensor"))

    def _tensor(self, tensors: Sequence[_core.TensorId], index: int) -> Optional[ITensor]:
        return ITensor(self._network, tensors[index]) if 0 <= index < len(tensors) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ILayer) and self._layer.id() == other._layer.id()

    def __hash__(self) -> int:
        return hash(self._layer.id())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class IDistCollectiveLayer(ILayer):
    """A collective of several ranks. ``num_ranks`` says how many; give it before you build."""

    @property
    def collective_operation(self) -> CollectiveOperation:
        """What it does."""
        return CollectiveOperation(self._layer.dist_collective()[0])

    @property
    def reduce_op(self) -> ReduceOperation:
        """How it reduces."""
        return ReduceOperation(self._layer.dist_collective()[1])

    @property
    def root(self) -> int:
        """The root; -1 if the operation has none. With several groups, a number within each."""
        return self._layer.dist_collective()[2]

    @property
    def groups(self) -> List[List[int]]:
        """The groups of ranks that take part; empty if all ranks do, as one group."""
        return self._layer.dist_collective()[3]


class IShuffleLayer(ILayer):
    """A transpose, a reshape, and another transpose. Each is done if it is set."""

    def _set(self, index: int, dims: Optional[Iterable[int]]) -> None:
        steps = list(self._layer.shuffle())
        steps[index] = None if dims is None else [int(length) for length in dims]
        self._layer.set_shuffle((steps[0], steps[1], steps[2]))

    def _permutation(self, index: int) -> Permutation:
        """A transpose; if it is not set, the one that changes nothing, of as many dimensions."""
        steps = self._layer.shuffle()
        found = steps[index]
        if found is None:
            tensor = self.get_output(0) if index == 2 else self.get_input(0)
            found = list(range(len(tensor.shape))) if tensor is not None else []
        return Permutation(found)

    @property
    def first_transpose(self) -> Permutation:
        """The order of dimensions before the reshape."""
        return self._permutation(0)

    @first_transpose.setter
    def first_transpose(self, permutation: Iterable[int]) -> None:
        self._set(0, permutation)

    @property
    def reshape_dims(self) -> Dims:
        """The shape to reshape to. 0 copies a dimension, and one -1 follows from the others."""
        dims = self._layer.shuffle()[1]
        if dims is not None:
            return Dims(dims)
        tensor = self.get_input(0)
        shape = tensor.shape if tensor is not None else Dims()
        return Dims(shape[d] for d in self.first_transpose)

    @reshape_dims.setter
    def reshape_dims(self, dims: Iterable[int]) -> None:
        self._set(1, dims)

    @property
    def second_transpose(self) -> Permutation:
        """The order of dimensions after the reshape."""
        return self._permutation(2)

    @second_transpose.setter
    def second_transpose(self, permutation: Iterable[int]) -> None:
        self._set(2, permutation)

    @property
    def zero_is_placeholder(self) -> bool:
        """True: a 0 in ``reshape_dims`` copies the dimension."""
        return True


class ICastLayer(ILayer):
    """A conversion to another type."""

    @property
    def to_type(self) -> DataType:
        """The type to convert to."""
        return DataType(self._layer.cast_type())

    @to_type.setter
    def to_type(self, to_type: DataType) -> None:
        self._layer.set_cast_type(int(DataType(to_type)))


class IConstantLayer(ILayer):
    """A constant."""

    @property
    def shape(self) -> Dims:
        """The shape."""
        return self.get_output(0).shape


class IElementWiseLayer(ILayer):
    """What is computed of two tensors, element by element."""

    @property
    def op(self) -> ElementWiseOperation:
        """What it computes."""
        return ElementWiseOperation(self._layer.elementwise_operation())

    @op.setter
    def op(self, op: ElementWiseOperation) -> None:
        self._layer.set_elementwise_operation(int(ElementWiseOperation(op)))


class IConcatenationLayer(ILayer):
    """Tensors one after the other."""

    @property
    def axis(self) -> int:
        """The dimension along which they are put together."""
        return self._layer.axis()

    @axis.setter
    def axis(self, axis: int) -> None:
        self._layer.set_axis(axis)


class ISliceLayer(ILayer):
    """A part of a tensor. ``set_input`` takes no start, shape or stride: they are known at build."""

    def _set(self, index: int, dims: Iterable[int]) -> None:
        slice = self._layer.slice()
        slice[index] = list(dims_of(dims))
        self._layer.set_slice(slice)

    @property
    def start(self) -> Dims:
        """The first index in each dimension."""
        return Dims(self._layer.slice()[0])

    @start.setter
    def start(self, start: Iterable[int]) -> None:
        self._set(0, start)

    @property
    def shape(self) -> Dims:
        """The shape of the part."""
        return Dims(self._layer.slice()[1])

    @shape.setter
    def shape(self, shape: Iterable[int]) -> None:
        self._set(1, shape)

    @property
    def stride(self) -> Dims:
        """How far apart the indices are in each dimension."""
        return Dims(self._layer.slice()[2])

    @stride.setter
    def stride(self, stride: Iterable[int]) -> None:
        self._set(2, stride)


class IIdentityLayer(ILayer):
    """A copy of a tensor."""


class IPluginLayer(ILayer):
    """A layer that the program writes."""


_CLASSES: Dict[LayerType, Type[ILayer]] = {
    LayerType.DIST_COLLECTIVE: IDistCollectiveLayer,
    LayerType.SHUFFLE: IShuffleLayer,
    LayerType.CAST: ICastLayer,
    LayerType.CONSTANT: IConstantLayer,
    LayerType.ELEMENTWISE: IElementWiseLayer,
    LayerType.CONCATENATION: IConcatenationLayer,
    LayerType.SLICE: ISliceLayer,
    LayerType.IDENTITY: IIdentityLayer,
    LayerType.PLUGIN: IPluginLayer,
}


def _id_of(tensor: ITensor, name: str) -> _core.TensorId:
    if not isinstance(tensor, ITensor):
        raise TypeError(f"{name} is a {type(tensor).__qualname__}, not a tensor of a network; give layer.get_output(0)")
    return tensor._id


class INetworkDefinition(Guarded):
    """The description of a network: inputs, layers, outputs. ``Builder.create_network`` makes it."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._network = _core.Network()
        self._name = ""

    @property
    def name(self) -> str:
        """A name for the network, which has no effect."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = str(name)

    @property
    def builder(self) -> Any:
        """The builder that made the network."""
        return self._builder

    @property
    def flags(self) -> int:
        """The flags, as bits: every network has explicit batch and strong types."""
        return 1 << int(NetworkDefinitionCreationFlag.STRONGLY_TYPED)

    def get_flag(self, flag: NetworkDefinitionCreationFlag) -> bool:
        """Whether a flag is set."""
        return bool(self.flags & 1 << int(flag))

    @property
    def num_inputs(self) -> int:
        """The number of inputs."""
        return len(self._network.inputs())

    @property
    def num_outputs(self) -> int:
        """The number of outputs."""
        return len(self._network.outputs())

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return self._network.layer_count()

    def get_input(self, index: int) -> ITensor:
        """An input, in the order in which they were added."""
        return ITensor(self._network, self._network.inputs()[index])

    def get_output(self, index: int) -> ITensor:
        """An output, in the order in which they were marked."""
        return ITensor(self._network, self._network.outputs()[index])

    def get_layer(self, index: int) -> ILayer:
        """A layer, in the order in which they were added."""
        return self._layer(self._network.layers()[index])

    def __len__(self) -> int:
        return self.num_layers

    def __getitem__(self, index: int) -> ILayer:
        return self.get_layer(index)

    def __iter__(self) -> Iterator[ILayer]:
        return map(self._layer, self._network.layers())

    def _layer(self, layer: _core.LayerId) -> ILayer:
        kind = LayerType(_core.Layer(self._network, layer).kind())
        return _CLASSES[kind](self._network, layer)

    def for_rank(self, rank: int, world_size: int) -> None:
        """Say which rank of how many has the network's weights. Another rank cannot set its communicator.

        TensorRT does not have this.
        """
        self._network.for_rank(rank, world_size)

    def add_input(self, name: str, dtype: DataType, shape: Iterable[int]) -> ITensor:
        """Add an input. A dimension of -1 is dynamic: a profile says between what it lies."""
        return ITensor(self._network, self._network.add_input(name, int(DataType(dtype)), dims_of(shape)))

    def add_dist_collective(
        self,
        input: ITensor,
        dist_collective_op: CollectiveOperation,
        reduce_op: ReduceOperation = ReduceOperation.NONE,
        root: int = -1,
        groups: Groups = None,
    ) -> IDistCollectiveLayer:
        """Add a collective. Set ``num_ranks`` of the layer, which is 1 unless ``groups`` says more.

        ``groups`` are the ranks that take part, in the order of concatenation, blocks and reduction;
        empty for all. Beyond TensorRT it may be a list of equally long lists: each group does the
        collective by itself, and ``root`` is a number within each group.
        """
        given: List[Any] = [] if groups is None else list(groups)
        is_partition = any(not isinstance(group, Integral) for group in given)
        group_size = None
        if is_partition:
            sizes = {len(group) for group in given}
            if len(sizes) != 1:
                raise ArgumentError(f"groups of a partition have equal lengths; groups is {given}")
            group_size = sizes.pop()
        ranks = [int(rank) for group in given for rank in group] if is_partition else [int(rank) for rank in given]
        operations = (int(CollectiveOperation(dist_collective_op)), int(ReduceOperation(reduce_op)))
        layer = self._network.add_dist_collective(_id_of(input, "input"), operations, root, ranks, group_size)
        return IDistCollectiveLayer(self._network, layer)

    def add_shuffle(self, input: ITensor) -> IShuffleLayer:
        """Add a transpose, a reshape and another transpose, which attributes of the layer set."""
        return IShuffleLayer(self._network, self._network.add_shuffle(_id_of(input, "input")))

    def add_cast(self, input: ITensor, to_type: DataType) -> ICastLayer:
        """Add a conversion to another type."""
        layer = self._network.add_cast(_id_of(input, "input"), int(DataType(to_type)))
        return ICastLayer(self._network, layer)

    def add_constant(self, shape: Iterable[int], weights: Union[Weights, Any]) -> IConstantLayer:
        """Add a constant with a copy of the weights: a ``Weights``, an array or a tensor."""
        return IConstantLayer(self._network, self._network.add_constant(dims_of(shape), elements_of(weights)))

    def add_elementwise(self, input1: ITensor, input2: ITensor, op: ElementWiseOperation) -> IElementWiseLayer:
        """Add an operation on two tensors of as many dimensions. A dimension of 1 fits every other."""
        number = int(ElementWiseOperation(op))
        layer = self._network.add_elementwise(_id_of(input1, "input1"), _id_of(input2, "input2"), number)
        return IElementWiseLayer(self._network, layer)

    def add_concatenation(self, inputs: Sequence[ITensor]) -> IConcatenationLayer:
        """Put tensors one after the other, along ``axis`` of the layer.

        That is at first, as TensorRT has it, the third dimension from the end, or the first one.
        """
        tensors = [_id_of(tensor, "an input") for tensor in inputs]
        axis = max(len(inputs[0].shape) - 3, 0) if inputs else 0
        return IConcatenationLayer(self._network, self._network.add_concatenation(tensors, axis))

    def add_slice(
        self, input: ITensor, start: Iterable[int], shape: Iterable[int], stride: Iterable[int]
    ) -> ISliceLayer:
        """Add a part of a tensor: from ``start`` on, each ``stride``-th element, ``shape`` of them."""
        dims = (dims_of(start), dims_of(shape), dims_of(stride))
        return ISliceLayer(self._network, self._network.add_slice(_id_of(input, "input"), *dims))

    def add_identity(self, input: ITensor) -> IIdentityLayer:
        """Add a copy of a tensor. It has the same type: ``add_cast`` converts."""
        return IIdentityLayer(self._network, self._network.add_identity(_id_of(input, "input")))

    def add_plugin(self, inputs: Sequence[ITensor], plugin: Plugin, name: str = "") -> IPluginLayer:
        """Add a layer that the program writes; see ``Plugin``. TensorRT has ``add_plugin_v3``."""
        adapter = Adapter(plugin)
        name = name or f"{adapter.type_name}_{self.num_layers}"
        tensors = [_id_of(tensor, "an input") for tensor in inputs]
        return IPluginLayer(self._network, self._network.add_plugin(name, adapter, tensors))

    def mark_output(self, tensor: ITensor) -> None:
        """Make a tensor an output."""
        self._network.mark_output(_id_of(tensor, "tensor"))
