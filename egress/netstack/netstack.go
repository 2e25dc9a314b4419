// Package netstack is the host's end of a sandbox's network interface, in user space: gVisor's TCP/IP on the link's
// descriptor, and a filter below it.
//
// The guest's root is the adversary. A packet reaches the stack only when it comes from the one address the guest was
// given and goes to the gateway, and nothing listens there: the guest can answer connections that [Stack.Dial] made and
// open none. Everything else is dropped and counted by reason; a TCP connection attempt elsewhere is reset and a UDP
// datagram answered with "port unreachable", so that programs inside fail at once instead of waiting.
package netstack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/caisson-sandbox/caisson"
)

const nic = 1

// Config of a stack.
type Config struct {
	File      *os.File // our end of the SOCK_SEQPACKET pair, one IP packet a message; New takes it over in every case
	MTU       int
	Gateway   netip.Addr // our address
	Guest     netip.Addr // the only address that the guest may use
	PrefixLen int
}

// Stack is one sandbox's network. Its methods may be called by several goroutines.
type Stack struct {
	cfg   Config
	fd    int
	stack *stack.Stack
	link  *filter

	closed sync.Once
	done   chan struct{}
}

// New starts a stack.
func New(c Config) (*Stack, error) {
	const op = "start network"
	defer c.File.Close()
	if !c.Gateway.Is4() || !c.Guest.Is4() || c.MTU < 576 || c.MTU > 65535 || c.PrefixLen < 1 || c.PrefixLen > 31 {
		return nil, caisson.E(caisson.Invalid, op, c.Guest.String(), "the addresses or the MTU are not usable", nil)
	}
	fd, err := duplicate(c.File)
	if err != nil {
		return nil, caisson.E(caisson.Exhausted, op, "", "the link's descriptor cannot be duplicated", err)
	}
	s := &Stack{cfg: c, fd: fd, done: make(chan struct{})}
	if err := s.open(); err != nil {
		if s.stack != nil {
			s.stack.Destroy()
		}
		unix.Close(fd)
		return nil, caisson.E(caisson.Internal, op, c.Guest.String(), "the stack refused its configuration", err)
	}
	return s, nil
}

// duplicate gives a descriptor that the stack owns: an os.File would set it to blocking when asked for its number.
func duplicate(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	if dupErr != nil {
		return -1, dupErr
	}
	return fd, unix.SetNonblock(fd, true)
}

func (s *Stack) open() error {
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{s.fd}, MTU: uint32(s.cfg.MTU), PacketDispatchMode: fdbased.RecvMMsg,
		// Packets carry no checksums: both ends are on this host, and the sentry's end is set up the same.
		TXChecksumOffload: true, RXChecksumOffload: true,
	})
	if err != nil {
		return err
	}
	s.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	if err := s.tune(); err != nil {
		return err
	}
	s.link = newFilter(link, s.cfg)
	if err := s.stack.CreateNIC(nic, s.link); err != nil {
		return fmt.Errorf("create interface: %s", err)
	}
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: tcpip.AddrFrom4(s.cfg.Gateway.As4()), PrefixLen: s.cfg.PrefixLen}}
	if err := s.stack.AddProtocolAddress(nic, addr, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("add address: %s", err)
	}
	s.stack.SetRouteTable([]tcpip.Route{{Destination: addr.AddressWithPrefix.Subnet(), NIC: nic}})
	return nil
}

// tune sets what TCP may use. The link has no delay and no loss, so windows need not be large.
func (s *Stack) tune() error {
	sack := tcpip.TCPSACKEnabled(true)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 512 << 10, Max: 4 << 20}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 512 << 10, Max: 4 << 20}
	moderate := tcpip.TCPModerateReceiveBufferOption(true)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &rcv, &snd, &moderate} {
		if err := s.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("set TCP option %T: %s", o, err)
		}
	}
	return nil
}

// Dial connects to a TCP port of the guest's address.
func (s *Stack) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	const op = "dial guest"
	select {
	case <-s.done:
		return nil, caisson.E(caisson.Unavailable, op, strconv.Itoa(int(port)), "the sandbox's network is closed", nil)
	default:
	}
	conn, err := s.connect(ctx, tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(s.cfg.Guest.As4()), Port: port})
	if err != nil {
		kind := caisson.Unavailable
		if ctx.Err() != nil {
			kind = caisson.KindOf(ctx.Err())
		}
		return nil, caisson.E(kind, op, strconv.Itoa(int(port)), "the guest did not accept the connection", err)
	}
	return conn, nil
}

// connect is gonet.DialContextTCP with keep-alive, and with an end when the stack closes.
func (s *Stack) connect(ctx context.Context, to tcpip.FullAddress) (net.Conn, error) {
	var wq waiter.Queue
	ep, terr := s.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if terr != nil {
		return nil, fmt.Errorf("make endpoint: %s", terr)
	}
	idle, every := tcpip.KeepaliveIdleOption(30*time.Second), tcpip.KeepaliveIntervalOption(10*time.Second)
	ep.SetSockOpt(&idle)
	ep.SetSockOpt(&every)
	ep.SocketOptions().SetKeepAlive(true)
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	terr = ep.Connect(to)
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ready:
			terr = ep.LastError()
		case <-ctx.Done():
			ep.Abort()
			return nil, context.Cause(ctx)
		case <-s.done:
			ep.Abort()
			return nil, net.ErrClosed
		}
	}
	if terr != nil {
		ep.Close()
		return nil, fmt.Errorf("connect: %s", terr)
	}
	return gonet.NewTCPConn(&wq, ep), nil
}

// Drops says how many packets the filter has dropped, by reason.
func (s *Stack) Drops() map[string]uint64 { return s.link.drops() }

// Close resets every connection and gives the descriptor back. It is idempotent and waits.
func (s *Stack) Close() error {
	s.closed.Do(func() {
		close(s.done)
		s.stopReading()
		s.stack.Destroy()
		unix.Close(s.fd)
	})
	return nil
}

// stopReading puts a descriptor that is no socket in the link's place. Once the other end has closed a SOCK_SEQPACKET pair,
// each read of it is an empty message, and the link's reader, which looks for its stop signal only when there is nothing
// to read, would read them for ever.
func (s *Stack) stopReading() {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Shutdown(s.fd, unix.SHUT_RDWR) // no descriptor is left: the best that is possible
		return
	}
	unix.Dup3(fd, s.fd, unix.O_CLOEXEC)
	unix.Close(fd)
}
