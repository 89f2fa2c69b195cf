//! Opens files that somebody else may have put there, and creates files for this user alone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a regular file for reading. Anything else is an error, and never waits: opening a pipe
/// would wait for a writer, and a device has no end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_with(OpenOptions::new().read(true), path)
}

/// Opens or creates a regular file as `options` say, and is otherwise like [`open_regular`].
pub fn open_regular_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // To open a device may have an effect, so it is not even opened.
    if let Ok(found) = std::fs::metadata(path) {
        check(&found)?;
    }
    // Another file may be there by now.
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(found: &std::fs::Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = kind(found);
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("expected a regular file, found {what}"),
    ))
}

#[cfg(unix)]
fn kind(found: &std::fs::Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match found.file_type() {
        ty if ty.is_dir() => "a folder",
        ty if ty.is_fifo() => "a pipe",
        ty if ty.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn kind(found: &std::fs::Metadata) -> &'static str {
    match found.is_dir() {
        true => "a folder",
        false => "a device",
    }
}

/// Options whose new files only this user can read (mode 0600), as prompts, texts and keys need.
#[cfg(unix)]
pub fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Options of [`OpenOptions`], where files have no mode.
#[cfg(not(unix))]
pub fn private_options() -> OpenOptions {
    OpenOptions::new()
}

/// Refuses a folder that somebody else could have put there to read or to choose what is kept in
/// it: a link, or a folder of another user.
pub fn check_own_folder(folder: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(folder)?;
    let reason = match found {
        found if found.is_symlink() => "a link",
        found if !found.is_dir() => "a file",
        #[cfg(unix)]
        found if !is_own(&found) => "a folder of another user",
        _ => return Ok(()),
    };
    let reason = format!("expected a folder of this user, found {reason}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

#[cfg(unix)]
fn is_own(found: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    found.uid() == rustix::process::geteuid().as_raw()
}

/// Creates a folder and its parents; those that are new only this user can enter (mode 0700).
pub fn create_private_folders(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
