//! Loop devices: a file as a block device. A device created here disappears by itself when it is neither open nor
//! mounted, also when this process is killed.
#![expect(unsafe_code, reason = "ioctls have no safe interface")]

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl};

const CONTROL: &str = "/dev/loop-control";
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const FLAG_AUTOCLEAR: u32 = 4;
/// The kernel ignores it if the file does not support it.
const FLAG_DIRECT_IO: u32 = 16;

/// Another process may take the free device that we were given; then we retry.
const ATTEMPTS_MAX: usize = 64;

/// `loop_info64`
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `loop_config`
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// An attached loop device. It stays attached as long as this, or a mount, holds it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    open: File,
}

impl LoopDevice {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a device is available, checked before anything is created for it.
    pub fn available() -> io::Result<()> {
        free_number().map(|_| ())
    }

    /// The device that has this file already, or a new one. A file is never attached twice: two devices of one file
    /// system would destroy it.
    pub fn attach(image: &File) -> io::Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(device) = Self::find(image)? {
                return Ok(device);
            }
            let device = Self::open(free_number()?, DeviceAccess::Write)?;
            match configure(&device.open, image) {
                Ok(()) => return Ok(device),
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("other programs took every free loop device first"))
    }

    /// The device that has this file, if any.
    pub fn find(image: &File) -> io::Result<Option<Self>> {
        let image = rustix::fs::fstat(image)?;
        for entry in std::fs::read_dir("/sys/block")? {
            let name = entry?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_prefix("loop")) else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            if !Path::new(&format!("/sys/block/loop{number}/loop")).exists() {
                continue;
            }
            // It may be gone by now.
            let Ok(device) = Self::open(number, DeviceAccess::Read) else { continue };
            match status(&device.open) {
                Ok(info) if (info.device, info.inode) == (image.st_dev, image.st_ino) => {
                    return Ok(Some(device));
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Updates the device to the present size of its file.
    pub fn refresh_size(&self) -> io::Result<()> {
        // SAFETY: this ioctl takes no argument; the descriptor is open.
        match unsafe { libc::ioctl(self.open.as_raw_fd(), LOOP_SET_CAPACITY) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn open(number: u32, access: DeviceAccess) -> io::Result<Self> {
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let write = access == DeviceAccess::Write;
        let open = OpenOptions::new().read(true).write(write).open(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
        })?;
        Ok(Self { path, open })
    }
}

/// Only a device that was opened for writing is writable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceAccess {
    Read,
    Write,
}

fn free_number() -> io::Result<u32> {
    let control = File::open(CONTROL)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot open {CONTROL}: {error}")))?;
    // SAFETY: this ioctl takes no argument and answers with a number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

fn configure(device: impl AsFd, image: &File) -> Result<(), Errno> {
    let config = LoopConfig {
        fd: image.as_raw_fd().unsigned_abs(),
        block_size: 4096,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: FLAG_AUTOCLEAR | FLAG_DIRECT_IO,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: the kernel only reads `config`, which has the layout the ioctl expects; the descriptor in it
    // is open.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

fn status(device: impl AsFd) -> Result<LoopInfo, Errno> {
    // SAFETY: the kernel fills a `LoopInfo`, of which every bit pattern is valid.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}
