//! Running a program on the CPU with made-up inputs.

use std::collections::HashMap;

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance};
use thane_mil::program::Program;
use thane_mil::types::{DType, Dim, Symbol, TensorType, Type};

pub fn instance(program: &Program, numerics: Numerics) -> Box<dyn Instance> {
    Cpu::new(numerics, 2)
        .load(program)
        .unwrap()
        .instantiate()
        .unwrap()
}

/// Numbers without a pattern, the same each time.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Both zeros are among the floats.
    fn bytes(&mut self, dtype: DType) -> Vec<u8> {
        let n = self.next();
        match dtype {
            DType::Fp32 if n.is_multiple_of(7) => (-0.0f32).to_ne_bytes().to_vec(),
            DType::Fp32 => ((n % 4001) as f32 / 1000.0 - 2.0).to_ne_bytes().to_vec(),
            DType::Int32 => (n as i32 % 5).to_ne_bytes().to_vec(),
            DType::Bool => vec![(n % 2) as u8],
            other => panic!("no test has an input of {other}"),
        }
    }
}

/// What each output of `function` holds after each of three calls; the states go on from one to the
/// next.
pub fn outputs(program: &Program, function: &str) -> Vec<Vec<u8>> {
    let f = program.function(function).unwrap();
    let mut instance = instance(program, Numerics::F32);
    let mut noise = Noise(11);
    let mut found = Vec::new();
    for call in 0..3 {
        let mut symbols: HashMap<Symbol, usize> = HashMap::new();
        for &input in &f.body().inputs {
            let Type::Tensor(TensorType { dtype, shape }) = &f.value(input).ty else {
                continue;
            };
            let mut size = |d: &Dim| match d {
                Dim::Known(n) => *n,
                Dim::Symbol(s) => *symbols.entry(*s).or_insert(call + 2),
            };
            let shape: Vec<usize> = shape.iter().map(&mut size).collect();
            let bytes: Vec<u8> = (0..shape.iter().product())
                .flat_map(|_| noise.bytes(*dtype))
                .collect();
            instance
                .input(&f.value(input).name, &shape)
                .unwrap()
                .copy_from_slice(&bytes);
        }
        instance.run(function).unwrap();
        let names = f.body().outputs.iter().map(|v| f.value(*v).name.as_str());
        found.extend(names.map(|name| instance.output(name).unwrap().bytes.to_vec()));
    }
    found
}
