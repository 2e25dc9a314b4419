package netstack

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

var guestAddr, gatewayAddr = netip.MustParseAddr("10.0.2.2"), netip.MustParseAddr("10.0.2.1")

// newStack gives a stack and the guest's end of its link.
func newStack(t testing.TB) (*Stack, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{File: os.NewFile(uintptr(fds[0]), "link"), MTU: 65520, Gateway: gatewayAddr, Guest: guestAddr, PrefixLen: 24})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]); s.Close() })
	return s, fds[1]
}

// guest is a kernel at the other end.
func guest(t *testing.T, fd int) *stack.Stack {
	t.Helper()
	st := stack.New(stack.Options{NetworkProtocols: []stack.NetworkProtocolFactory{ipv4.NewProtocol}, TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol}})
	ep, err := fdbased.New(&fdbased.Options{FDs: []int{fd}, MTU: 65520, PacketDispatchMode: fdbased.RecvMMsg, TXChecksumOffload: true, RXChecksumOffload: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	st.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{Address: tcpip.AddrFrom4(guestAddr.As4()), PrefixLen: 24}}, stack.AddressProperties{})
	st.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return st
}

func TestDial(t *testing.T) {
	s, fd := newStack(t)
	st := guest(t, fd)
	l, err := gonet.ListenTCP(st, tcpip.FullAddress{NIC: 1, Port: 7}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with its one connection
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := s.Dial(ctx, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go c.Write(want) // its end is seen by the read below
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("echo: %v", err)
	}
	if _, err := s.Dial(ctx, 8); err == nil {
		t.Error("a port nobody listens on was reached")
	}
}

// TestNothingIsReachable: what the guest opens is refused at once, at the gateway and beyond.
func TestNothingIsReachable(t *testing.T) {
	s, fd := newStack(t)
	st := guest(t, fd)
	for _, to := range []string{"10.0.2.1", "10.0.2.3", "169.254.169.254", "1.1.1.1"} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		c, err := gonet.DialContextTCP(ctx, st, tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(netip.MustParseAddr(to).As4()), Port: 80}, ipv4.ProtocolNumber)
		if err == nil {
			c.Close()
			t.Errorf("%s was reached", to)
		}
		if ctx.Err() != nil {
			t.Errorf("%s: it was not refused at once", to)
		}
		cancel()
	}
	if n := s.Drops()["destination"]; n < 3 {
		t.Errorf("%d drops by destination", n)
	}
}

func packet(src, dst string, proto tcpip.TransportProtocolNumber, flags uint8, payload int) []byte {
	b := make([]byte, header.IPv4MinimumSize+payload)
	h := header.IPv4(b)
	h.Encode(&header.IPv4Fields{TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(proto), Flags: flags,
		SrcAddr: tcpip.AddrFrom4(netip.MustParseAddr(src).As4()), DstAddr: tcpip.AddrFrom4(netip.MustParseAddr(dst).As4())})
	h.SetChecksum(^h.CalculateChecksum())
	return b
}

// TestFilter counts what is dropped below the stack, by reason.
func TestFilter(t *testing.T) {
	s, fd := newStack(t)
	long := packet("10.0.2.2", "10.0.2.1", header.TCPProtocolNumber, 0, 20)
	header.IPv4(long).SetTotalLength(0xffff)
	for reason, p := range map[string][]byte{
		"source":      packet("10.0.2.9", "10.0.2.1", header.TCPProtocolNumber, 0, 20),
		"fragment":    packet("10.0.2.2", "10.0.2.1", header.TCPProtocolNumber, header.IPv4FlagMoreFragments, 24),
		"destination": packet("10.0.2.2", "8.8.8.8", header.UDPProtocolNumber, 0, 8),
		"protocol":    packet("10.0.2.2", "10.0.2.1", header.UDPProtocolNumber, 0, 8),
		"ipv6":        append([]byte{0x60, 0, 0, 0, 0, 20, byte(header.TCPProtocolNumber), 64}, make([]byte, 32+20)...),
		"malformed":   long,
	} {
		if _, err := unix.Write(fd, p); err != nil {
			t.Fatal(err)
		}
		ok := false
		for range 50 {
			if ok = s.Drops()[reason] == 1; ok {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if !ok {
			t.Errorf("%s: %v", reason, s.Drops())
		}
	}
}

// TestCloseAfterOtherEnd: the other end closes while its packets are being read, and Close still ends.
func TestCloseAfterOtherEnd(t *testing.T) {
	for range 200 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(Config{File: os.NewFile(uintptr(fds[0]), "link"), MTU: 65520, Gateway: gatewayAddr, Guest: guestAddr, PrefixLen: 24})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			unix.Write(fds[1], packet("10.0.2.2", "8.8.8.8", header.UDPProtocolNumber, 0, 8))
		}
		unix.Close(fds[1])
		ended := make(chan struct{})
		go func() { s.Close(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the stack did not close")
		}
	}
}

// FuzzFrames: whatever the guest sends, the host goes on.
func FuzzFrames(f *testing.F) {
	f.Add(packet("10.0.2.2", "10.0.2.1", header.TCPProtocolNumber, 0, 20))
	f.Add(packet("10.0.2.2", "8.8.8.8", header.UDPProtocolNumber, 0, 4))
	f.Add([]byte{0x60})
	s, fd := newStack(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 65520 {
			return
		}
		unix.Write(fd, b)
		var drain [1 << 16]byte
		unix.Read(fd, drain[:])
		s.Drops()
	})
}
