//! Large blocks of memory are separate mappings, and are returned to the kernel as soon as they are freed.
//!
//! Data passes through the guest in buffers of many sizes. The C library keeps some of those for later use. That is
//! sensible for a busy program, and a waste in the first process of an idle sandbox.

#![expect(unsafe_code, reason = "an allocator hands out memory")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// Blocks of this size and more are mappings of their own: smaller ones are not worth a system call.
const LARGE: usize = 16 * 1024;
const PAGE: usize = 4096;

/// The allocator of the guest.
pub struct LargeBlocks;

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

/// New pages, zeroed; null if there are none.
fn map(len: usize) -> *mut u8 {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, -1, 0) };
    if mapped == libc::MAP_FAILED { ptr::null_mut() } else { mapped.cast() }
}

// SAFETY: a block is valid, aligned and nobody else's: a large one is whole pages of its own mapping, all others are the
// system's. Which of the two it is follows from its layout alone, so it is given back, or changed, as what it is.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            map(layout.size())
        } else {
            // SAFETY: the caller keeps to the contract, which is the same.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            map(layout.size())
        } else {
            // SAFETY: the caller keeps to the contract, which is the same.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: the mapping that `map` made for a block of this layout, and nobody uses it any more.
            unsafe { libc::munmap(block.cast(), layout.size()) };
        } else {
            // SAFETY: the caller keeps to the contract, which is the same.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises that the new size, rounded up to the alignment, is no overflow.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            // SAFETY: the caller keeps to the contract, which is the same.
            (false, false) => unsafe { System.realloc(block, layout, new_size) },
            (true, true) => {
                // SAFETY: the mapping that `map` made for a block of this layout; what is in it moves along.
                let moved = unsafe {
                    libc::mremap(block.cast(), layout.size(), new_size, libc::MREMAP_MAYMOVE)
                };
                if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() }
            }
            (true, false) | (false, true) => {
                // SAFETY: the new layout is valid, and its size is not 0, as the caller promises.
                let other = unsafe { self.alloc(new) };
                if !other.is_null() {
                    let kept = layout.size().min(new_size);
                    // SAFETY: both blocks have as many bytes, and they are different blocks; the old one is given back
                    // once, by its own layout.
                    unsafe {
                        ptr::copy_nonoverlapping(block, other, kept);
                        self.dealloc(block, layout);
                    }
                }
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block keeps its content while it grows and shrinks across the threshold, and beyond a page.
    #[test]
    fn a_block_keeps_what_it_holds_whatever_becomes_of_it() {
        let sizes = [100, LARGE - 1, LARGE, 5 * LARGE + 1, 70 * LARGE, LARGE + 1, LARGE - 1, 64];
        let layout = |size: usize| Layout::from_size_align(size, 1).unwrap();
        // SAFETY: each block is used within its size, and changed and given back by its own layout.
        unsafe {
            let mut block = LargeBlocks.alloc_zeroed(layout(sizes[0]));
            for pair in sizes.windows(2) {
                let (old, new) = (pair[0], pair[1]);
                block.write(1);
                block.add(old - 1).write(2);
                let kept = old.min(new);
                let last = block.add(kept - 1).read();
                block = LargeBlocks.realloc(block, layout(old), new);
                assert!(!block.is_null());
                assert_eq!((block.read(), block.add(kept - 1).read()), (1, last), "{old} to {new}");
            }
            LargeBlocks.dealloc(block, layout(*sizes.last().unwrap()));
        }
    }
}
