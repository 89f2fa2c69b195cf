//! Mapped files.

use thane_mil::package::map;

#[test]
fn a_truncated_file_is_found_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weight.bin");
    std::fs::write(&path, [7; 5000]).unwrap();
    let part = map(&path).unwrap().slice(10..20).unwrap();
    part.check_len().unwrap();
    std::fs::write(dir.path().join("new"), [8; 10]).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    let error = part.check_len().unwrap_err();
    assert_eq!(
        (error.expected, error.found, &error.path),
        (5000, 100, &path)
    );
    assert!(
        error
            .to_string()
            .contains("weight.bin: expected 5000 bytes, as when it was opened, found 100"),
        "{error}"
    );
    // After a replacement by rename, the old file has its old content.
    std::fs::write(&path, [7; 5000]).unwrap();
    let part = map(&path).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    part.check_len().unwrap();
    assert_eq!(part.as_slice()[4999], 7);
}

#[cfg(unix)]
#[test]
fn released_bytes_are_read_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bytes");
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let mapped = map(&path).unwrap();
    let [table, other] = [100..30_000, 30_000..50_000].map(|range| mapped.slice(range).unwrap());
    assert!(!table.is_released() && !other.is_released());
    mapped.slice(20_000..30_000).unwrap().release();
    assert!(table.is_released() && mapped.is_released() && !other.is_released());
    let mut row = [0; 300];
    assert!(table.read(29_000, &mut row));
    assert_eq!(row, bytes[29_100..29_400]);
    assert!(!table.read(29_601, &mut row) && !table.read(usize::MAX, &mut row));
    assert_eq!(row, bytes[29_100..29_400]);
    assert_eq!(table.as_slice(), &bytes[100..30_000]);
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    use std::os::unix::net::UnixListener;
    use thane_mil::package::open_regular;
    let folder = tempfile::tempdir().unwrap();
    let [file, pipe, socket, link] = ["file", "pipe", "s", "link"].map(|n| folder.path().join(n));
    std::fs::write(&file, "text").unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    drop(UnixListener::bind(&socket).unwrap());
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    assert!(open_regular(&file).is_ok());
    for (path, what) in [
        (pipe.as_path(), "a pipe"),
        (&link, "a pipe"),
        (&socket, "a socket"),
        (folder.path(), "a folder"),
        ("/dev/null".as_ref(), "a device"),
    ] {
        let expected = format!("expected a regular file, found {what}");
        assert_eq!(open_regular(path).unwrap_err().to_string(), expected);
    }
}
