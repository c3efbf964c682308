package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// pulse keeps leases alive over one stream, and opens a new stream after a failure.
// clientv3's own calls do not fit: KeepAlive gives up after an outage of one TTL, and
// KeepAliveOnce loops without a pause while there is no connection. Not safe for
// concurrent use; the zero value has no stream.
type pulse struct {
	stream pb.Lease_LeaseKeepAliveClient // nil: no stream is open
	end    context.CancelFunc
}

// beat renews the lease. It returns rpctypes.ErrLeaseNotFound if the lease has ended.
func (p *pulse) beat(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) error {
	used := p.stream != nil
	res, err := p.ask(ctx, client, lease)
	if err != nil && used && ctx.Err() == nil {
		// The stream may have ended long ago, which only a request shows.
		res, err = p.ask(ctx, client, lease)
	}
	if err != nil {
		return err
	}
	if res.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return nil
}

// ask sends one request and reads its answer. After a failure it closes the stream, so
// that a late answer is not read as the answer to the next request.
func (p *pulse) ask(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) (res *pb.LeaseKeepAliveResponse, err error) {
	whole := context.WithoutCancel(ctx)
	if p.stream == nil {
		whole, p.end = context.WithCancel(whole)
	}
	defer context.AfterFunc(ctx, p.end)()
	if p.stream == nil {
		p.stream, err = pb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(whole, grpc.WaitForReady(true))
	}
	if err == nil {
		err = p.stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease)})
	}
	if p.stream != nil { // Recv returns why a stream has ended
		var told error
		res, told = p.stream.Recv()
		if told != nil {
			err = told
		}
	}
	if err != nil {
		p.stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, rpctypes.Error(err)
	}
	return res, nil
}

// stop closes the stream.
func (p *pulse) stop() {
	if p.end != nil {
		p.end()
	}
	p.stream, p.end = nil, nil
}
