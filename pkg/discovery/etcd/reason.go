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

// explained adds to an error that says only that time has run out why there is
// no connection. clientv3 waits for one with each call, and an outage has to be
// waited for; but a wrong certificate, name or port looks just the same.
func explained(ctx context.Context, client *clientv3.Client, err error) error {
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.DeadlineExceeded {
		return err
	}
	if why := unconnected(ctx, client); why != "" {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// unconnected returns why there is no connection, or "" when there is one or
// when that is not known.
func unconnected(ctx context.Context, client *clientv3.Client) string {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	// A call that does not wait fails at once with what befell the connection.
	_, err := pb.NewKVClient(client.ActiveConnection()).Range(ctx, &pb.RangeRequest{Key: []byte{0}, Serializable: true, CountOnly: true},
		grpc.WaitForReady(false))
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable {
		return s.Message()
	}
	return ""
}
