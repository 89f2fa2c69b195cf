//! What an op does, without its numbers: the part of a row that backends and the audit share.

/// The kind of work of an op. The audit prices an op by its kind; backends ask which ops move
/// elements and compute none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A constant, stored or decoded: `const` and the constexpr ops.
    Constant,
    /// Sums of products, of weights or of two activations.
    Product,
    /// Attention in one op: scores, softmax, weighted sum.
    Attention,
    /// `y[i] = f(x[i])`, where f has no parameters but scalars.
    Unary,
    /// `y[i] = f(x[i])`, where f has parameters along an axis.
    Channelwise,
    /// `y[i] = f(a[i], b[i], ..)`, operands broadcast.
    Elementwise,
    /// Another element type.
    Cast,
    /// A sum, mean or maximum over axes.
    Reduction,
    /// Softmax.
    Softmax,
    /// A norm, whose factor follows from x.
    Normalization,
    /// A pool.
    Pool,
    /// An image at other points.
    Resample,
    /// Single elements in another order, such as a transpose or a lookup.
    Rearrange,
    /// Runs of elements, such as a slice or a concatenation.
    Copy,
    /// Elements of a constant, alone or around those of x.
    Fill,
    /// The elements of x in their order, in another shape.
    Reshape,
    /// Like [`Self::Reshape`], where the order in memory never changes.
    View,
    /// The shape of x.
    Shape,
    /// A sort of x or its first elements.
    Sort,
    /// Random numbers.
    Random,
    /// Reads or writes a state.
    State,
    /// Runs blocks.
    Control,
    /// An op of lists.
    List,
    /// Anything else.
    Other,
}

impl OpKind {
    /// Whether the results hold elements of the operands, or zeros beside them, and nothing else.
    pub const fn moves(self) -> bool {
        matches!(
            self,
            Self::Rearrange | Self::Copy | Self::Reshape | Self::View
        )
    }

    /// Whether each element of the result follows from one element of each operand.
    pub const fn is_elementwise(self) -> bool {
        matches!(
            self,
            Self::Unary | Self::Channelwise | Self::Elementwise | Self::Cast
        )
    }
}
