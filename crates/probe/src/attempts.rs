//! The attempts, each a function of the host's preparations.

mod clock;
mod control_groups;
mod devices;
mod files;
mod gateway;
mod guest;
mod kernel;
mod namespaces;
mod network;
mod own_network;
mod posing;
mod privileges;
mod processes;
mod settings;
mod shared;
mod sockets;
mod walk;

use probe::Attempt;

use crate::finding::{Finding, leaked};
use crate::scene::Scene;

pub fn make(attempt: Attempt, scene: &Scene) -> Finding {
    match attempt {
        Attempt::HostFile => files::host_file(scene),
        Attempt::HostSocket => files::host_socket(scene),
        Attempt::OtherSandboxFile => files::other_sandbox_file(scene),
        Attempt::FileHandle => files::file_handle(),
        Attempt::HostProcessSeen => processes::seen(scene),
        Attempt::HostProcessSignal => processes::signaled(scene),
        Attempt::HostLoopback => network::host_loopback(scene),
        Attempt::AbstractSocket => network::abstract_socket(scene),
        Attempt::ForeignAddress => network::foreign_address(scene),
        Attempt::MetadataAddress => network::metadata_address(scene),
        Attempt::Dns => network::dns(scene),
        Attempt::GatewayNames => gateway::names(scene),
        Attempt::GatewayAddresses => gateway::addresses(scene),
        Attempt::GatewayProxy => gateway::proxy(scene),
        Attempt::GatewayDatagrams => gateway::datagrams(scene),
        Attempt::InheritedDescriptors => processes::inherited_descriptors(scene),
        Attempt::GuestPtrace => guest::ptrace(),
        Attempt::GuestMemory => guest::memory(scene),
        Attempt::GuestDescriptors => guest::descriptors(scene),
        Attempt::GuestRoot => guest::root(),
        Attempt::GuestBinary => guest::binary(),
        Attempt::DialBack => posing::dial_back(),
        Attempt::RawDisk => devices::raw_disk(),
        Attempt::SharedWrite => shared::write(scene),
        Attempt::SharedSymlink => shared::symlink(scene),
        Attempt::SharedHardlink => shared::hardlink(scene),
        Attempt::Vsock => sockets::vsock(),
        Attempt::JoinNamespace => namespaces::join(),
        Attempt::SetuidCall => privileges::setuid_call(),
        Attempt::SetuidFile => privileges::setuid_file(scene),
        Attempt::Capabilities => privileges::capabilities(),
        Attempt::RawSocket => network::raw_socket(),
        Attempt::NetworkRules => own_network::rules(),
        Attempt::TransparentSocket => own_network::transparent(),
        Attempt::ListenerPort => own_network::listener_port(scene),
        Attempt::SocketProtocols => sockets::protocols(),
        Attempt::Netlink => sockets::netlink(),
        Attempt::SocketBuffers => sockets::buffers(),
        Attempt::Mount => namespaces::mount(),
        Attempt::MountApi => namespaces::mount_api(),
        Attempt::Remount => namespaces::remount(scene),
        Attempt::Unmount => namespaces::unmount(),
        Attempt::UserNamespaceUnshare => namespaces::unshare_user(),
        Attempt::UserNamespaceClone => namespaces::clone_user(),
        Attempt::OtherNamespaces => namespaces::unshare_others(),
        Attempt::Bpf => kernel::bpf(),
        Attempt::Keyring => kernel::keyring(),
        Attempt::IoUring => kernel::io_uring(),
        Attempt::Aio => kernel::aio(),
        Attempt::Perf => kernel::perf(),
        Attempt::Userfaultfd => kernel::userfaultfd(),
        Attempt::KernelModule => kernel::module(),
        Attempt::Kexec => kernel::kexec(),
        Attempt::Reboot => kernel::reboot(),
        Attempt::KernelMemory => kernel::memory(),
        Attempt::ProcMachine => settings::proc_machine(),
        Attempt::CoreDump => settings::core_dump(),
        Attempt::ProcSys => settings::proc_sys(),
        Attempt::Sysrq => settings::sysrq(),
        Attempt::Sysfs => settings::sysfs(),
        Attempt::CgroupReleaseAgent => control_groups::release_agent(),
        Attempt::CgroupMove => control_groups::leave(),
        Attempt::CgroupMount => control_groups::mount(),
        Attempt::DeviceNode => devices::make_node(),
        Attempt::DeviceFiles => devices::files(),
        Attempt::LineDiscipline => devices::line_discipline(),
        Attempt::Subvolume => files::subvolume(),
        Attempt::Clock => clock::set(),
        Attempt::I386Call => kernel::i386(),
        Attempt::X32Call => kernel::x32(),
        Attempt::ForkBomb
        | Attempt::DescriptorBomb
        | Attempt::DiskBomb
        | Attempt::InodeBomb
        | Attempt::InotifyBomb
        | Attempt::TcpBomb
        | Attempt::MemoryBomb => leaked("not judged: a bomb is started by itself"),
    }
}
