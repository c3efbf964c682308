package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// explained adds the reason why there is no connection to an error that says only that
// the time is over. clientv3 makes each call wait for a connection, so an outage, a
// wrong certificate, a wrong name and a wrong port all give the same error.
func explained(ctx context.Context, client *clientv3.Client, err error) error {
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.DeadlineExceeded {
		return err
	}
	if why := unconnected(ctx, client); why != "" {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// unconnected returns why there is no connection, or "" if there is one or the reason
// is not known.
func unconnected(ctx context.Context, client *clientv3.Client) string {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	// A call that does not wait for a connection fails at once with the reason.
	_, err := pb.NewKVClient(client.ActiveConnection()).Range(context.WithValue(ctx, unsigned{}, true), &pb.RangeRequest{Key: []byte{0}, Serializable: true, CountOnly: true},
		grpc.WaitForReady(false))
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable {
		return s.Message()
	}
	return ""
}
