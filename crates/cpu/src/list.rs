//! Ops on lists. A list is a tensor whose first axis counts its elements.
//!
//! Elements are zeros until they are written. Sizes that only the first written element tells are 0
//! until then.

use thane_mil::opset::OpDef;
use thane_mil::types::{DType, Dim, TensorType};

use crate::ops::{Fault, Value};
use crate::plain::Operand;
use crate::tensor::{Buffer, Pool, Tensor};

/// Whether that op is one on lists.
pub fn runs(name: &str) -> bool {
    matches!(
        name,
        "make_list" | "list_length" | "list_read" | "list_write" | "list_gather" | "list_scatter"
    )
}

/// One op on a list.
#[derive(Debug)]
pub struct Step {
    /// The op.
    pub def: &'static OpDef,
    /// One entry for each parameter.
    pub args: Vec<Option<Operand>>,
    /// Type of an element.
    pub element: TensorType,
    /// The length of a list that does not grow.
    pub len: Option<usize>,
}

impl Step {
    /// Run the op on its arguments.
    pub fn run(&self, args: &[Option<Value>], pool: &mut Pool) -> Result<Tensor, Fault> {
        let tensor = |name: &str| match self
            .def
            .param_index(name)
            .and_then(|i| args.get(i)?.as_ref())
        {
            Some(Value::Tensor(t)) => Some(t),
            _ => None,
        };
        let needed =
            |name: &str| tensor(name).ok_or_else(|| format!("`{name}` is not bound to a tensor"));
        if self.def.name == "make_list" {
            return self.make(tensor("init_length"), pool);
        }
        let list = needed("ls")?;
        let ints = |name: &str| {
            needed(name)?
                .to_ints()
                .ok_or_else(|| format!("`{name}` does not hold integers"))
        };
        match self.def.name {
            "list_length" => {
                let n = i32::try_from(list.shape[0])
                    .map_err(|_| "the length is no int32".to_owned())?;
                Ok(Tensor::new(
                    DType::Int32,
                    Vec::new(),
                    Buffer::I32(vec![n].into()),
                ))
            }
            "list_read" => self.gather(list, &ints("index")?, &list.shape[1..], pool),
            "list_gather" => {
                let indices = ints("indices")?;
                let shape = [&[indices.len()], &list.shape[1..]].concat();
                self.gather(list, &indices, &shape, pool)
            }
            "list_write" => self.write(list, &ints("index")?, needed("value")?, pool),
            _ => self.write(list, &ints("indices")?, needed("value")?, pool),
        }
    }

    fn make(&self, init_length: Option<&Tensor>, pool: &mut Pool) -> Result<Tensor, Fault> {
        let len = match init_length {
            None => 1,
            Some(t) => match t.to_ints().as_deref() {
                Some([n]) => usize::try_from(*n).map_err(|_| format!("`init_length` is {n}"))?,
                _ => return Err("`init_length` is not one integer".to_owned()),
            },
        };
        let dims = self.element.shape.iter().map(|d| d.known().unwrap_or(0));
        self.zeros(std::iter::once(len).chain(dims).collect(), pool)
    }

    fn zeros(&self, shape: Vec<usize>, pool: &mut Pool) -> Result<Tensor, Fault> {
        pool.zeros(self.element.dtype, shape)
    }

    /// The elements at `indices`, as a tensor of `shape`.
    fn gather(
        &self,
        list: &Tensor,
        indices: &[i64],
        shape: &[usize],
        pool: &mut Pool,
    ) -> Result<Tensor, Fault> {
        let size: usize = list.shape[1..].iter().product();
        let mut out = pool.tensor(self.element.dtype, shape.to_vec())?;
        let data = pool.own(&mut out)?;
        for (k, index) in indices.iter().enumerate() {
            let outside = || format!("element {index} is outside of a list of {}", list.shape[0]);
            let at = usize::try_from(*index)
                .ok()
                .filter(|i| *i < list.shape[0])
                .ok_or_else(outside)?;
            if !data.copy_from(k * size, &list.data, at * size, size) {
                return Err(format!(
                    "a list of {} cannot be read as {}",
                    list.dtype, self.element.dtype
                ));
            }
        }
        Ok(out)
    }

    /// The list with the elements of `values` at `indices`, as long as that needs.
    fn write(
        &self,
        list: &Tensor,
        indices: &[i64],
        values: &Tensor,
        pool: &mut Pool,
    ) -> Result<Tensor, Fault> {
        let dims = values
            .shape
            .get(values.shape.len().saturating_sub(self.element.rank())..)
            .unwrap_or_default();
        let (len, old_dims) = (list.shape[0], &list.shape[1..]);
        let unwritten = |(old, declared): (&usize, &Dim)| *old == 0 && declared.known().is_none();
        let fits = dims.len() == old_dims.len()
            && old_dims
                .iter()
                .zip(&self.element.shape)
                .zip(dims)
                .all(|(old, new)| old.0 == new || unwritten(old));
        if !fits || values.dtype != self.element.dtype {
            return Err(format!(
                "{:?} of {} is no element of a list of {old_dims:?}",
                dims, values.dtype
            ));
        }
        let size: usize = dims.iter().product();
        if values.len() != indices.len() * size {
            return Err(format!(
                "{:?} does not hold {} elements of {dims:?}",
                values.shape,
                indices.len()
            ));
        }
        let mut needed = len;
        for index in indices {
            let at = usize::try_from(*index)
                .map_err(|_| format!("element {index} cannot be written"))?;
            needed = needed.max(at.saturating_add(1));
        }
        if needed > self.len.unwrap_or(usize::MAX) {
            return Err(format!(
                "element {} is outside of a list of {len}, which does not grow",
                needed - 1
            ));
        }
        let mut out = list.clone();
        if needed > len || dims != old_dims {
            out = self.zeros([&[needed], dims].concat(), pool)?;
            pool.own(&mut out)?.copy_from(0, &list.data, 0, list.len());
        }
        let data = pool.own(&mut out)?;
        for (k, index) in indices.iter().enumerate() {
            if !data.copy_from(*index as usize * size, &values.data, k * size, size) {
                return Err(format!(
                    "{} cannot be written to a list of {}",
                    values.dtype, list.dtype
                ));
            }
        }
        Ok(out)
    }
}
