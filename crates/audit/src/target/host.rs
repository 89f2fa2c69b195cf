//! How fast the CPU and GPU of a chip run ops, from the times of whole networks. They predict how
//! long a call takes. Where Core ML runs an op follows from other numbers, its own estimates, which
//! are in [`Segmenter`](super::Segmenter).

use super::Figure;

/// The figures of a chip's CPU and GPU. The time of a network follows from several of them, so one
/// row does not settle a figure: its bounds are the values that give the measured time while the
/// other figures stay as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// Matrix products on the CPU, in 10^9 operations/s.
    pub cpu_gflops: Figure,
    /// Convolutions with larger kernels than 1x1 on the CPU, in 10^9 operations/s.
    pub cpu_conv_gflops: Figure,
    /// Convolutions of images with kernels of 1x1 on the CPU, in 10^9 operations/s.
    pub cpu_pointwise_gflops: Figure,
    /// A step of a recurrent layer on the CPU, in microseconds.
    pub cpu_step_us: Figure,
    /// fp16 operations of a core of the GPU, in 10^9/s.
    pub gpu_core_gflops: Figure,
    /// Bytes that a core of the GPU is fed, in 10^9/s.
    pub gpu_core_gbps: Figure,
    /// Starting an op on the GPU, in microseconds.
    pub gpu_launch_us: Figure,
}

impl Host {
    /// The figures by field name.
    pub fn figures(&self) -> [(&'static str, Figure); 7] {
        [
            ("cpu_gflops", self.cpu_gflops),
            ("cpu_conv_gflops", self.cpu_conv_gflops),
            ("cpu_pointwise_gflops", self.cpu_pointwise_gflops),
            ("cpu_step_us", self.cpu_step_us),
            ("gpu_core_gflops", self.gpu_core_gflops),
            ("gpu_core_gbps", self.gpu_core_gbps),
            ("gpu_launch_us", self.gpu_launch_us),
        ]
    }

    /// The figures for a related chip, of which nothing is published.
    pub(super) const fn related(self) -> Self {
        Self {
            cpu_gflops: self.cpu_gflops.related(),
            cpu_conv_gflops: self.cpu_conv_gflops.related(),
            cpu_pointwise_gflops: self.cpu_pointwise_gflops.related(),
            cpu_step_us: self.cpu_step_us.related(),
            gpu_core_gflops: self.gpu_core_gflops.related(),
            gpu_core_gbps: self.gpu_core_gbps,
            gpu_launch_us: self.gpu_launch_us.related(),
        }
    }

    /// The figures for a newer chip, of which nothing is published.
    pub(super) const fn widened(self) -> Self {
        Self {
            cpu_gflops: self.cpu_gflops.widened(),
            cpu_conv_gflops: self.cpu_conv_gflops.widened(),
            cpu_pointwise_gflops: self.cpu_pointwise_gflops.widened(),
            cpu_step_us: self.cpu_step_us.widened(),
            gpu_core_gflops: self.gpu_core_gflops.widened(),
            gpu_core_gbps: self.gpu_core_gbps.widened(),
            gpu_launch_us: self.gpu_launch_us.widened(),
        }
    }
}

const DENSE_NET: &str = "ml-macos-performance: DenseNet-121 of 5.7 10^9 operations, cpuOnly, \
    15.3 to 17.1 ms on M1, M1 Max and M2 Max";
const PPLX: &str = "CoreML-LLM, pull request 169: pplx-embed 0.6B at length 256, cpuOnly, 82 ms on \
    M4 Max";
const PYANNOTE: &str = "FluidAudio: segmentation of pyannote, 4 layers of 2 directions with 589 \
    steps each, 55 ms on M5";
const WHISPER: &str = "whisper.cpp, issue 89: encoders of Whisper reach 2.0 to 3.7 10^12 \
    operations/s on the 64 cores of an M1 Ultra";
const BATCH_16: &str = "erwinzhang7: transformers and ResNet-50 at batch 16 reach 5.4 to 6.3 10^12 \
    operations/s on the 20 cores of an M4 Pro, and 27 to 38 on the 40 of an M5 Max, whose cores \
    have units for products";
const MOBILE_NET: &str = "erwinzhang7: MobileNetV2 of 118 ops at batch 1 takes 0.67 ms on M5 Max, \
    its operations and bytes a tenth of that, and the call by predict 10 to 313 us";
const MEMORY: &str = "Apple's specifications: memory of 68 to 614 GB/s for 8 to 80 cores";

/// M1 and M2, Max among them, whose CPUs ran a convolutional network. Matrix products are taken to
/// reach half of what they do on M4.
pub(super) const M1: Host = Host {
    cpu_gflops: Figure::inferred(1_450.0, 725.0, 2_900.0).by(PPLX),
    cpu_conv_gflops: Figure::measured(340.0, 330.0, 410.0).by(DENSE_NET),
    cpu_pointwise_gflops: Figure::measured(340.0, 330.0, 410.0).by(DENSE_NET),
    cpu_step_us: Figure::measured(11.7, 11.0, 12.4).by(PYANNOTE).related(),
    gpu_core_gflops: Figure::measured(60.0, 31.0, 60.0).by(WHISPER).related(),
    gpu_core_gbps: Figure::inferred(12.0, 7.7, 15.4).by(MEMORY),
    gpu_launch_us: Figure::measured(5.0, 3.0, 5.7).by(MOBILE_NET).related(),
};

/// M1 Ultra, whose GPU ran encoders.
pub(super) const M1_ULTRA: Host = Host {
    gpu_core_gflops: Figure::measured(60.0, 31.0, 60.0).by(WHISPER),
    ..M1.related()
};

/// A16 and M3: the GPU is taken to be between those of its neighbors.
pub(super) const M3: Host = Host {
    gpu_core_gflops: Figure::inferred(150.0, 60.0, 360.0).by(BATCH_16),
    ..M1.related()
};

/// A17 Pro and M4. Convolutions are taken to be twice as fast as on M1 and M2, and the matrix unit
/// to make kernels of 1x1 as fast as other products.
pub(super) const M4: Host = Host {
    cpu_gflops: PRODUCTS.related(),
    cpu_conv_gflops: Figure::inferred(680.0, 340.0, 1_360.0).by(DENSE_NET),
    cpu_pointwise_gflops: Figure::inferred(2_900.0, 680.0, 4_600.0).by(PPLX),
    gpu_core_gflops: CORE_OF_M4.related(),
    ..M1
};

/// The low bound is the rate with which the row takes as long as measured; the high bound is as far
/// above the value.
const PRODUCTS: Figure = Figure::measured(2_900.0, 2_250.0, 3_700.0).by(PPLX);
const CORE_OF_M4: Figure = Figure::measured(360.0, 270.0, 400.0).by(BATCH_16);

/// M4 Pro, whose GPU ran five networks.
pub(super) const M4_PRO: Host = Host {
    gpu_core_gflops: CORE_OF_M4,
    ..M4
};

/// M4 Max, whose CPU ran an encoder.
pub(super) const M4_MAX: Host = Host {
    cpu_gflops: PRODUCTS,
    ..M4
};

/// M5, whose CPU ran recurrent layers.
pub(super) const M5: Host = Host {
    cpu_step_us: Figure::measured(11.7, 11.0, 12.4).by(PYANNOTE),
    gpu_core_gflops: CORE_OF_M5.related(),
    ..M4
};

/// The low bound is what whole networks reach; with the high bound DistilBERT takes as long as
/// measured.
const CORE_OF_M5: Figure = Figure::measured(1_080.0, 675.0, 1_530.0).by(BATCH_16);

/// M5 Max, whose GPU ran five networks.
pub(super) const M5_MAX: Host = Host {
    cpu_step_us: M4.cpu_step_us,
    gpu_core_gflops: CORE_OF_M5,
    gpu_launch_us: Figure::measured(5.0, 3.0, 5.7).by(MOBILE_NET),
    ..M5
};

/// M5 Pro, A18, A19 and M6.
pub(super) const RELATED_TO_M5: Host = Host {
    cpu_step_us: M4.cpu_step_us,
    ..M5
};
