//! Image inputs: PNG and JPEG files go into packages as the tensors that coremltools and PIL give
//! (`tests/oracle/make_images.py`), and files that do not fit are refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::{Home, assert_ends, stdout};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images")
}

fn predict(home: &Home, case: &str, file: &Path, more: &[&str]) -> std::process::Output {
    let package = folder().join(format!("{case}.mlpackage"));
    let (input, out) = (format!("image={}", file.display()), home.path("out"));
    let args = [
        "predict",
        package.to_str().unwrap(),
        "--input",
        &input,
        "--out",
        out.to_str().unwrap(),
        "--force",
    ];
    home.run(&[&args[..], more].concat())
}

/// Header and elements of a .npy file of fp32 or fp16.
fn npy(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8(bytes[10..end].to_vec()).unwrap();
    let elements = &bytes[end..];
    let values = if header.contains("<f2") {
        let halves = elements.as_chunks().0.iter();
        halves
            .map(|b| thane_mil::literal::f16_to_f32(u16::from_le_bytes(*b)))
            .collect()
    } else {
        let singles = elements.as_chunks().0.iter();
        singles.map(|b| f32::from_le_bytes(*b)).collect()
    };
    (header.trim_end().to_owned(), values)
}

/// Steps of a pixel by which decoders of JPEG may differ: rounding, and how color is upsampled.
fn steps(file: &str) -> f32 {
    match file {
        "subsampled.jpg" => 8.0,
        _ if file.ends_with(".jpg") => 2.0,
        _ => 0.0,
    }
}

#[test]
fn images_are_read_as_coremltools_reads_them() {
    let home = Home::new();
    // The step of a pixel in the output: twice the scale.
    let cases = [
        ("rgb", 2.0 / 127.5),
        ("bgr", 1.0),
        ("gray", 2.0 / 255.0),
        ("half", 2.0),
        ("enumerated", 2.0),
        ("ranges", 2.0),
    ];
    let mut n_files = 0;
    for (case, step) in cases {
        for entry in fs::read_dir(folder()).unwrap() {
            let golden = entry.unwrap().path();
            let name = golden.file_name().unwrap().to_str().unwrap().to_owned();
            let prefix = format!("{case}-");
            let Some(file) = name
                .strip_prefix(&prefix)
                .and_then(|n| n.strip_suffix(".npy"))
            else {
                continue;
            };
            assert_ends(&predict(&home, case, &folder().join(file), &[]), 0, &[]);
            let (header, found) = npy(&home.path("out").join("y.npy"));
            let (expected_header, expected) = npy(&golden);
            assert_eq!(header, expected_header, "{name}");
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f32::max);
            assert!(
                worst <= steps(file) * step * 1.001 + 1e-6,
                "{name}: {worst}"
            );
            n_files += 1;
        }
    }
    assert_eq!(n_files, 17);
}

#[test]
fn inspect_says_which_inputs_are_images() {
    let home = Home::new();
    for (case, expected) in [
        ("bgr", "BGR image, 24 x 16\n"),
        ("enumerated", "image, 24 x 16, or other sizes\n"),
    ] {
        let package = folder().join(format!("{case}.mlpackage"));
        let output = home.run(&["inspect", "--stats", package.to_str().unwrap()]);
        assert_ends(&output, 0, &[]);
        let text = stdout(&output);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn an_input_without_a_file_has_generated_pixels() {
    let home = Home::new();
    let package = folder().join("rgb.mlpackage");
    let (package, out) = (package.to_str().unwrap(), home.path("out"));
    let output = home.run(&["predict", package, "--out", out.to_str().unwrap()]);
    assert_ends(
        &output,
        0,
        &["input image was made up: fp32 [1, 3, 16, 24], from 0 to 255, seed 0"],
    );
    let (_, values) = npy(&out.join("y.npy"));
    let least = values.iter().fold(f32::MAX, |a, b| a.min(*b));
    let most = values.iter().fold(f32::MIN, |a, b| a.max(*b));
    // 2 * (pixel / 127.5 + bias), with biases from -1.25 to -0.5.
    assert!((-2.5..-2.3).contains(&least) && (2.8..=3.0).contains(&most));
    let input = format!("image={}", folder().join("rgb.png").display());
    let bench = [
        "bench", "predict", package, "--input", &input, "--rounds", "1",
    ];
    assert_ends(&home.run(&bench), 0, &[]);
}

#[test]
fn packages_are_compared_on_pixels() {
    let home = Home::new();
    let [rgb, bgr] = ["rgb.mlpackage", "bgr.mlpackage"].map(|name| folder().join(name));
    let packages = ["diff", rgb.to_str().unwrap(), bgr.to_str().unwrap()];
    assert_ends(
        &home.run(&packages),
        1,
        &["integers 0 or 1, pixels from 0 to 255, seed 0: image"],
    );
    let inputs = home.path("inputs");
    fs::create_dir(&inputs).unwrap();
    fs::copy(folder().join("rgb.png"), inputs.join("image.PNG")).unwrap();
    let given = [&packages[..], &["--inputs", inputs.to_str().unwrap()]].concat();
    let output = home.run(&given);
    assert_ends(&output, 1, &["the packages differ"]);
    // The numbers are those that coremltools computed of this file.
    let [(_, a), (_, b)] =
        ["rgb-rgb.png.npy", "bgr-rgb.png.npy"].map(|name| npy(&folder().join(name)));
    let pairs = || a.iter().zip(&b);
    let most = pairs().fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
    assert!(
        stdout(&output).contains(&format!("`y` differs by {most:.3e} at most")),
        "{most:.3e}: {}",
        stdout(&output)
    );
    fs::copy(folder().join("rgb-rgb.png.npy"), inputs.join("image.npy")).unwrap();
    assert_ends(&home.run(&given), 2, &["`image` has two files"]);
}

#[test]
fn images_that_do_not_fit_are_refused_with_a_remedy() {
    let home = Home::new();
    let cut = |name: &str| {
        let bytes = fs::read(folder().join(name)).unwrap();
        let path = home.path(&format!("cut-{name}"));
        fs::write(&path, &bytes[..bytes.len() * 2 / 3]).unwrap();
        path
    };
    let text = home.path("text.png");
    fs::write(&text, "no image").unwrap();
    let file = |name: &str| folder().join(name);
    let size = "expected an image of 24 x 16 pixels (width x height), found 10 x 20";
    for (case, path, said) in [
        ("rgb", file("tall.png"), [size, "-resize WIDTHxHEIGHT!"]),
        (
            "gray",
            file("rgb.png"),
            ["expected a grayscale image", "-colorspace gray"],
        ),
        (
            "gray",
            file("plain.jpg"),
            ["expected a grayscale image", "-colorspace gray"],
        ),
        (
            "rgb",
            file("transparent.png"),
            ["expected opaque pixels", "-alpha remove"],
        ),
        (
            "rgb",
            file("deep.png"),
            ["expected 8 bits per channel, found 16", "-depth 8"],
        ),
        ("rgb", file("cmyk.jpg"), ["found CMYK", "-colorspace sRGB"]),
        (
            "rgb",
            cut("rgb.png"),
            ["input `image`", "a damaged PNG file"],
        ),
        (
            "rgb",
            cut("plain.jpg"),
            ["input `image`", "a damaged JPEG file"],
        ),
        ("rgb", text, ["expected PNG, JPEG or .npy", "text.png"]),
    ] {
        assert_ends(&predict(&home, case, &path, &[]), 2, &said);
    }
}

/// Files of a hundred bytes that claim billions of pixels.
#[test]
fn huge_images_are_refused_before_memory_is_taken() {
    let home = Home::new();
    let (png, jpeg) = (home.path("huge.png"), home.path("huge.jpg"));
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = [
        &60_000u32.to_be_bytes()[..],
        &60_000u32.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ];
    chunk(&mut file, b"IHDR", &header.concat());
    chunk(&mut file, b"IDAT", &[0x78, 0x01, 0x01, 0, 0]);
    fs::write(&png, file).unwrap();
    // An image in gray of 65,000 x 65,000 pixels, whose scan is empty.
    let frame = [0xff, 0xc0, 0, 11, 8, 0xfd, 0xe8, 0xfd, 0xe8, 1, 1, 0x11, 0];
    let scan = [0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0xff, 0xd9];
    let start = fs::read(folder().join("gray.jpg")).unwrap();
    let at = start.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
    fs::write(&jpeg, [&start[..at], &frame, &scan].concat()).unwrap();
    for path in [&png, &jpeg] {
        let output = predict(&home, "ranges", path, &["--memory", "1GB"]);
        assert_ends(&output, 2, &["an image of 6", "of memory"]);
        assert_ends(
            &predict(&home, "rgb", path, &[]),
            2,
            &["expected an image of 24 x 16"],
        );
    }
}

/// Appends a chunk of a PNG file.
fn chunk(file: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(name);
    file.extend(data);
    let crc = file[start..].iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| {
            (c >> 1) ^ if c & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    });
    file.extend((!crc).to_be_bytes());
}

#[test]
fn models_that_are_no_ml_programs_are_refused_by_kind() {
    let home = Home::new();
    let package = home.path("pipeline.mlpackage");
    let data = package.join("Data/com.apple.CoreML");
    fs::create_dir_all(&data).unwrap();
    let manifest = folder().join("rgb.mlpackage/Manifest.json");
    fs::copy(manifest, package.join("Manifest.json")).unwrap();
    // Version 1, an empty description, and an empty model of a kind.
    for (field, said) in [
        (
            [0xd2, 0x0c, 0],
            [
                "holds a pipeline, expected an ML Program",
                "pipeline's models",
            ],
        ),
        (
            [0x9a, 0x19, 0],
            [
                "holds a neural network classifier",
                "convert_to=\"mlprogram\"",
            ],
        ),
        (
            [0xf2, 0x12, 0],
            ["holds a tree ensemble regressor", "run it with Core ML"],
        ),
    ] {
        let model = [&[0x08, 0x01, 0x12, 0x02, 0x0a, 0x00][..], &field].concat();
        fs::write(data.join("model.mlmodel"), model).unwrap();
        let out = home.path("out");
        let (package, out) = (package.to_str().unwrap(), out.to_str().unwrap());
        assert_ends(&home.run(&["predict", package, "--out", out]), 2, &said);
        assert_ends(&home.run(&["bench", "predict", package]), 2, &said);
    }
}
