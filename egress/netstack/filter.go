package netstack

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// reason says why a packet was dropped.
type reason int

const (
	pass      reason = iota
	malformed        // not an IPv4 packet
	ipv6             // the private link has none
	source           // not the guest's address
	fragment         // nothing on this link needs them
	elsewhere        // not for the gateway
	protocol         // not TCP
	reasons
)

var reasonNames = [reasons]string{"", "malformed", "ipv6", "source", "fragment", "destination", "protocol"}

// filter is a link endpoint that lets only the private link's own packets up to the stack.
type filter struct {
	nested.Endpoint
	guest, gateway tcpip.Address
	dropped        [reasons]atomic.Uint64
}

func newFilter(child stack.LinkEndpoint, c Config) *filter {
	f := &filter{guest: tcpip.AddrFrom4(c.Guest.As4()), gateway: tcpip.AddrFrom4(c.Gateway.As4())}
	f.Init(child, f)
	return f
}

func (f *filter) drops() map[string]uint64 {
	m := map[string]uint64{}
	for r := pass + 1; r < reasons; r++ {
		m[reasonNames[r]] = f.dropped[r].Load()
	}
	return m
}

// DeliverNetworkPacket implements stack.NetworkDispatcher: it is called with each packet from the guest.
func (f *filter) DeliverNetworkPacket(p tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	r := f.judge(p, pkt)
	if r == pass {
		f.Endpoint.DeliverNetworkPacket(p, pkt)
		return
	}
	f.dropped[r].Add(1)
	if r == elsewhere || r == protocol {
		f.refuse(pkt)
	}
}

func (f *filter) judge(p tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) reason {
	if p == header.IPv6ProtocolNumber {
		return ipv6
	}
	ip, ok := ipHeader(pkt)
	switch {
	case p != header.IPv4ProtocolNumber || !ok:
		return malformed
	case ip.SourceAddress() != f.guest:
		return source
	case ip.More() || ip.FragmentOffset() != 0:
		return fragment
	case ip.DestinationAddress() != f.gateway:
		return elsewhere
	case ip.TransportProtocol() != header.TCPProtocolNumber:
		return protocol
	}
	return pass
}

// ipHeader gives the packet's IPv4 header, options included, when the packet is as long as it says.
func ipHeader(pkt *stack.PacketBuffer) (header.IPv4, bool) {
	b, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	if !ok {
		return nil, false
	}
	ip, size := header.IPv4(b), pkt.Data().Size()
	n := int(ip.HeaderLength())
	if b[0]>>4 != 4 || n < header.IPv4MinimumSize || int(ip.TotalLength()) < n || int(ip.TotalLength()) > size {
		return nil, false
	}
	b, ok = pkt.Data().PullUp(n)
	return header.IPv4(b), ok
}

// refuse tells the sender of a dropped packet that nobody is there.
func (f *filter) refuse(pkt *stack.PacketBuffer) {
	ip, ok := ipHeader(pkt)
	if !ok || !f.unicast(ip.DestinationAddress()) {
		return
	}
	n := int(ip.HeaderLength())
	var answer []byte
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber:
		if b, ok := pkt.Data().PullUp(n + header.TCPMinimumSize); ok {
			answer = reset(ip, header.TCP(b[n:]))
		}
	case header.UDPProtocolNumber:
		if b, ok := pkt.Data().PullUp(n + header.UDPMinimumSize); ok {
			answer = unreachable(ip, b[:n+header.UDPMinimumSize])
		}
	}
	if answer == nil {
		return
	}
	out := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(answer)})
	defer out.DecRef()
	out.NetworkProtocolNumber = header.IPv4ProtocolNumber
	var list stack.PacketBufferList
	list.PushBack(out)
	f.Child().WritePackets(list) // a full link loses the answer, as any network may
}

func (f *filter) unicast(a tcpip.Address) bool {
	b := a.As4()
	return b[0] != 0 && b[0] < 224
}

// answerTo makes the IPv4 header of an answer to ip with n bytes after it.
func answerTo(ip header.IPv4, proto tcpip.TransportProtocolNumber, n int) []byte {
	b := make([]byte, header.IPv4MinimumSize+n)
	h := header.IPv4(b)
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(proto),
		SrcAddr: ip.DestinationAddress(), DstAddr: ip.SourceAddress(),
	})
	h.SetChecksum(^h.CalculateChecksum())
	return b
}

// reset answers a SYN as a closed port does; other segments get none.
func reset(ip header.IPv4, in header.TCP) []byte {
	if in.Flags()&(header.TCPFlagSyn|header.TCPFlagAck|header.TCPFlagRst) != header.TCPFlagSyn {
		return nil
	}
	b := answerTo(ip, header.TCPProtocolNumber, header.TCPMinimumSize)
	t := header.TCP(b[header.IPv4MinimumSize:])
	t.Encode(&header.TCPFields{
		SrcPort: in.DestinationPort(), DstPort: in.SourcePort(), AckNum: in.SequenceNumber() + 1,
		DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagRst | header.TCPFlagAck,
	})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.DestinationAddress(), ip.SourceAddress(), header.TCPMinimumSize)
	t.SetChecksum(^t.CalculateChecksum(sum))
	return b
}

// unreachable answers a datagram, of which quote is the header and the first eight bytes.
func unreachable(ip header.IPv4, quote []byte) []byte {
	b := answerTo(ip, header.ICMPv4ProtocolNumber, header.ICMPv4MinimumSize+len(quote))
	m := header.ICMPv4(b[header.IPv4MinimumSize:])
	m.SetType(header.ICMPv4DstUnreachable)
	m.SetCode(header.ICMPv4PortUnreachable)
	copy(m[header.ICMPv4MinimumSize:], quote)
	m.SetChecksum(^checksum.Checksum(m, 0))
	return b
}
