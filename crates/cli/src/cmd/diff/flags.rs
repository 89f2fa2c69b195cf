//! The flags of `thane diff`.

use std::path::PathBuf;

use crate::tensors;

/// Compare two Core ML packages: structure, constants, and what they compute in f32.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage or .mlmodelc folder, or a .mil file with its weights.
    pub(super) a: PathBuf,
    /// The package to compare with.
    pub(super) b: PathBuf,
    /// Seed of generated inputs: floats from -1 to 1, integers 0 or 1, pixels from 0 to 255.
    #[arg(long, alias = "random-seed", value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Read inputs and states from NAME.npy in this folder.
    ///
    /// Images may be NAME.png or NAME.jpg. Inputs without a file are generated, states are zeros.
    #[arg(long, value_name = "DIR")]
    pub(super) inputs: Option<PathBuf>,
    /// Pass if numbers are close, whatever else differs.
    ///
    /// An output may differ by X times its largest magnitude in the first package.
    #[arg(long, value_name = "X", value_parser = tensors::at_least_zero)]
    pub(super) tolerance: Option<f64>,
    /// Pass if numbers differ by at most X, plus what --tolerance accepts.
    #[arg(long, value_name = "X", value_parser = tensors::at_least_zero)]
    pub(super) absolute_tolerance: Option<f64>,
    /// Do not run the functions.
    #[arg(long, conflicts_with_all = ["inputs", "tolerance", "absolute_tolerance"])]
    pub(super) no_run: bool,
}
