//! All attempts, each with its name and what its failure would prove.

/// The owner of what an attempt tries to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The host, another sandbox or the guest: must never be reached.
    Outside,
    /// A kernel interface. If the sandbox has a kernel of its own, using it reaches nothing else.
    Kernel,
    /// A resource shared by the whole machine. How much of it a sandbox may use is judged from outside.
    Share,
}

macro_rules! attempts {
    ($($scope:ident { $($variant:ident $name:literal $proves:literal)* })*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Attempt { $($($variant,)*)* }

        impl Attempt {
            /// In the order in which they are made and displayed.
            pub const ALL: [Self; [$($($name,)*)*].len()] = [$($(Self::$variant,)*)*];

            pub fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// What is true if it holds.
            pub fn proves(self) -> &'static str {
                match self { $($(Self::$variant => $proves,)*)* }
            }

            pub fn scope(self) -> Scope {
                match self { $($(Self::$variant => Scope::$scope,)*)* }
            }
        }
    };
}

attempts! {
    Outside {
        HostFile "host-file" "a file of the host that everybody may read cannot be read: not by its path, through the root of any process, or by climbing out of a chroot"
        HostSocket "host-socket" "a Unix socket of the host cannot be connected to by its path"
        OtherSandboxFile "other-sandbox-file" "a file of another sandbox of the same runtime cannot be read"
        FileHandle "file-handle" "no file is opened by its handle, past the root"
        HostProcessSeen "host-process-seen" "processes of the host and of other sandboxes are not in /proc"
        HostProcessSignal "host-process-signal" "a process of the host gets no signal"
        HostLoopback "host-loopback" "a listener on the host's loopback cannot be connected to"
        AbstractSocket "abstract-socket" "an abstract Unix socket of the host cannot be connected to"
        ForeignAddress "foreign-address" "no route leads out, and a foreign address is unreachable at once (nothing is sent)"
        MetadataAddress "metadata-address" "no route leads to the cloud's metadata service (nothing is sent)"
        Dns "dns" "no resolver is reachable: none of resolv.conf by the routes, none on the host's loopback, no socket of one"
        GatewayNames "gateway-names" "where a sandbox has a way out, a query about a name that its policy does not allow is refused, of every type and whichever resolver is asked"
        GatewayAddresses "gateway-addresses" "there, no address leads anywhere that is not a name's which the policy allows"
        GatewayProxy "gateway-proxy" "there, the proxy leads to no other host, port or notation of an address than the policy allows"
        GatewayDatagrams "gateway-datagrams" "there, datagrams other than queries are refused at once: QUIC, multicast"
        InheritedDescriptors "inherited-descriptors" "a command starts with stdin, stdout and stderr and no other descriptor"
        GuestPtrace "guest-ptrace" "PID 1 cannot be traced"
        GuestMemory "guest-memory" "the memory of PID 1 can be neither read nor written"
        GuestDescriptors "guest-descriptors" "no descriptor of PID 1 can be taken, by pidfd_getfd or through /proc/1/fd"
        GuestRoot "guest-root" "the root and directory of PID 1 are no way out"
        GuestBinary "guest-binary" "the program of PID 1 cannot be overwritten"
        DialBack "dial-back" "where the guest dials the host, nobody else who dials is taken for the guest"
        RawDisk "raw-disk" "no disk of the host can be opened"
        SharedWrite "shared-write" "nothing can be made, changed or opened for writing in directories that are shared with the host"
        SharedSymlink "shared-symlink" "symbolic links and descriptors' paths do not make shared files writable"
        SharedHardlink "shared-hardlink" "shared files cannot be linked or moved to where they could be changed, nor others put among them"
        Vsock "vsock" "no socket leads to the host of a virtual machine, from which no network namespace separates"
        JoinNamespace "join-namespace" "no namespace of PID 1 can be joined"
        SetuidCall "setuid-call" "an ordinary user does not become root by asking"
        SetuidFile "setuid-file" "a set-user-ID program raises nobody"
    }
    Kernel {
        Capabilities "capabilities" "no capability beyond the few that package managers need, not even in the bounding set"
        RawSocket "raw-socket" "no packets past the network's own rules"
        NetworkRules "network-rules" "the routes, addresses, packet filter and settings of its own network cannot be changed"
        TransparentSocket "transparent-socket" "no socket takes connections that were made to another address"
        ListenerPort "listener-port" "where a sandbox has a way out, nobody inside takes the ports of what catches its traffic"
        SocketProtocols "socket-protocols" "no protocol beyond TCP, UDP and ICMP, for which the kernel would load modules"
        Netlink "netlink" "no netlink beyond the sandbox's own routes and sockets: the host's events are not heard"
        SocketBuffers "socket-buffers" "the sizes of socket buffers cannot be raised past those of the sandbox's network"
        Mount "mount" "nothing can be mounted"
        MountApi "mount-api" "nor through the newer calls for mounts"
        Remount "remount" "a read-only mount stays read-only"
        Unmount "unmount" "nothing can be unmounted, and the root not be exchanged"
        UserNamespaceUnshare "user-namespace-unshare" "no new user namespace by unshare"
        UserNamespaceClone "user-namespace-clone" "no new user namespace by clone and clone3"
        OtherNamespaces "other-namespaces" "no new namespace of any other kind"
        Bpf "bpf" "no BPF"
        Keyring "keyring" "no kernel keyrings, which are not namespaced"
        IoUring "io-uring" "no io_uring"
        Aio "aio" "no contexts of io_setup, which are counted for the whole machine"
        Perf "perf" "no performance events"
        Userfaultfd "userfaultfd" "no page faults handled in user space"
        KernelModule "kernel-module" "no kernel module can be loaded or unloaded"
        Kexec "kexec" "no other kernel can be loaded"
        Reboot "reboot" "the machine cannot be rebooted"
        KernelMemory "kernel-memory" "the kernel's memory and messages cannot be read"
        ProcMachine "proc-machine" "boot parameters, interrupts and the like cannot be read in /proc"
        CoreDump "core-dump" "no program of the host is started to take a core"
        ProcSys "proc-sys" "settings of the whole machine in /proc/sys cannot be written"
        Sysrq "sysrq" "the emergency keys of the kernel cannot be pressed"
        Sysfs "sysfs" "nothing in /sys can be written"
        CgroupReleaseAgent "cgroup-release-agent" "no program can be named that the host's kernel would run"
        CgroupMove "cgroup-move" "no way out of the control group and its limits"
        CgroupMount "cgroup-mount" "no control group hierarchy can be mounted"
        DeviceNode "device-node" "no device node can be made"
        DeviceFiles "device-files" "no device is there but the harmless ones"
        LineDiscipline "line-discipline" "the line discipline of a terminal, which may load a module, cannot be changed"
        Subvolume "subvolume" "the flags of a btrfs subvolume cannot be changed, nor others made or removed"
        Clock "clock" "the clock cannot be set"
        I386Call "i386-call" "the 32-bit entry to the kernel is no way around the filter"
        X32Call "x32-call" "nor is the x32 one"
    }
    Share {
        ForkBomb "fork-bomb" "processes end at the limit"
        DescriptorBomb "descriptor-bomb" "open files end before the host's do"
        DiskBomb "disk-bomb" "the disk ends at the quota"
        InodeBomb "inode-bomb" "so do files without any content"
        InotifyBomb "inotify-bomb" "inotify instances end before the host's do"
        TcpBomb "tcp-bomb" "unread data of TCP ends at a few hundred KiB for each connection"
        MemoryBomb "memory-bomb" "memory ends at the limit"
    }
}

impl Attempt {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attempt| attempt.name() == name)
    }
}
