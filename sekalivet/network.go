package sekalivet

import (
	"go/ast"
	"go/constant"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

const (
	whyNetwork = "is called inside the message's transaction, which stays open meanwhile and does not undo it: a rollback or a redelivery" +
		" calls it again; call it in Prepare, through an effect.Ledger, or send a message through the outbox"
	whyEffectInside = "is called inside the message's transaction, which stays open during the call, with its locks and its connection;" +
		" call it in Prepare"
	whyEffect = "changes something outside the database without an effect.Ledger: Prepare may run several times for a message, and" +
		" each run does it again; call it in the function given to effect.Do"
	whySettle = "settles the delivery before the message's transaction has committed: if that fails or the process dies, the broker has" +
		" forgotten the message; settle it after Process has returned, or leave it to the Consumer"
)

// named are packages of which these functions and methods, of whatever type,
// call the network. A name that ends in * stands for all that begin so.
var named = map[string][]string{
	"net/http":                              {"Get", "Head", "Post", "PostForm", "Do", "RoundTrip"},
	"net":                                   {"Dial*", "Lookup*"},
	"net/smtp":                              {"SendMail", "Dial", "Mail", "Rcpt", "Data"},
	"net/rpc":                               {"Dial*", "Call", "Go"},
	"crypto/tls":                            {"Dial*"},
	"google.golang.org/grpc":                {"Invoke", "NewStream"},
	"github.com/twmb/franz-go/pkg/kgo":      {"Produce*", "TryProduce", "Request*", "Poll*", "Ping", "Flush", "BeginTransaction", "EndTransaction"},
	"github.com/segmentio/kafka-go":         {"WriteMessages", "Write", "ReadMessage", "FetchMessage", "Dial*"},
	"github.com/IBM/sarama":                 {"SendMessage*", "Input", "NewClient", "NewSyncProducer"},
	"github.com/Shopify/sarama":             {"SendMessage*", "Input", "NewClient", "NewSyncProducer"},
	"github.com/rabbitmq/amqp091-go":        {"Publish*", "Get", "Consume*", "Dial*", "Queue*", "Exchange*"},
	"github.com/streadway/amqp":             {"Publish*", "Get", "Consume", "Dial*", "Queue*", "Exchange*"},
	"github.com/Azure/go-amqp":              {"Send", "SendWithReceipt", "Receive", "Dial", "NewSession", "NewSender", "NewReceiver"},
	"github.com/nats-io/nats.go":            {"Publish*", "Request*", "Flush*", "Connect", "Respond*", "Put*", "Get", "Create", "Update", "Delete", "Purge", "Fetch"},
	"github.com/nats-io/nats.go/jetstream":  {"Publish*", "Fetch*", "Next", "Put*", "Get", "Create*", "Update*", "Delete*", "Purge*"},
	"github.com/ThreeDotsLabs/watermill":    {"Publish"},
	"github.com/gomodule/redigo/redis":      {"Do*", "Send", "Flush", "Receive*", "Dial*"},
	"github.com/aws/aws-sdk-go/aws/request": {"Send"},
	"os/exec":                               {"Run", "Start", "Output", "CombinedOutput"},
	sekaliPath + "/broker":                  {"Publish", "Receive"},
}

// clients are libraries that talk to something: what of them takes a context,
// or has a name that says so, and can fail, calls the network.
var clients = []string{
	"github.com/redis/go-redis", "github.com/go-redis/redis", "github.com/redis/rueidis", "github.com/bradfitz/gomemcache",
	"github.com/aws/aws-sdk-go-v2", "github.com/aws/aws-sdk-go", "github.com/Azure/azure-sdk-for-go", "cloud.google.com/go", "google.golang.org/api",
	"github.com/stripe/stripe-go", "github.com/adyen/adyen-go-api-library", "github.com/plutov/paypal", "github.com/braintree-go/braintree-go", "github.com/square/square-go-sdk",
	"github.com/twilio/twilio-go", "github.com/sendgrid/sendgrid-go", "github.com/mailgun/mailgun-go", "github.com/slack-go/slack", "github.com/resend/resend-go",
	"github.com/wneessen/go-mail", "gopkg.in/gomail.v2", "github.com/go-gomail/gomail", "github.com/jordan-wright/email", "github.com/xhit/go-simple-mail",
	"github.com/go-resty/resty", "resty.dev", "github.com/hashicorp/go-retryablehttp", "github.com/valyala/fasthttp", "github.com/imroc/req", "connectrpc.com/connect", "github.com/twitchtv/twirp",
	"go.mongodb.org/mongo-driver", "github.com/gocql/gocql", "github.com/elastic/go-elasticsearch", "github.com/opensearch-project/opensearch-go", "github.com/ClickHouse/clickhouse-go",
	"go.etcd.io/etcd", "github.com/hashicorp/consul/api", "github.com/hashicorp/vault/api", "github.com/minio/minio-go", "github.com/twmb/franz-go/pkg/kadm",
	"github.com/confluentinc/confluent-kafka-go", "github.com/apache/pulsar-client-go", "github.com/eclipse/paho.mqtt.golang", "go.temporal.io/sdk/client", "github.com/algolia/algoliasearch-client-go",
}

var (
	verb = regexp.MustCompile(`^(Send|Dial|Do|Call|Invoke|Get|List|Find|Query|Search|Fetch|Read|Post|Put|Patch|Delete|Del|Create|Update|Insert|Write|Publish|Produce|Charge|Capture|Confirm|Cancel|Refund|Retrieve|Execute|Request|Receive|Ping|Set|Upload|Download|Copy|Index)([A-Z0-9]|$)`)
	// asking is what changes nothing at the other end.
	asking = regexp.MustCompile(`^(Get|Head|List|Lookup|Describe|Find|Query|Search|Fetch|Read|Receive|Retrieve|Exists|Scan|Ping|Poll|Dial|Connect|Next|Consume|H?M?Get|Flush)([A-Z0-9]|$)`)
	// making is what makes a value and asks nobody yet.
	making = regexp.MustCompile(`^(New|Must|With|Parse|Load|Default|Validate|Marshal|Unmarshal|Encode|Decode)([A-Z]|$)`)
)

// isNetwork tells whether a function calls the network, by its name.
func isNetwork(f *types.Func) bool {
	if f.Pkg() == nil {
		return false
	}
	path, name := plainPath(f.Pkg().Path()), f.Name()
	if isNamed(named[path], name) {
		return !isPlain(f)
	}
	switch {
	case strings.HasPrefix(path, sekaliPath+"/broker/"):
		return isNamed(named[sekaliPath+"/broker"], name)
	case strings.HasPrefix(path, "github.com/ThreeDotsLabs/watermill"):
		return name == "Publish"
	case isBelow(path, clients):
		return isClientCall(f)
	}
	return takesCallOptions(f.Signature())
}

// isPlain tells of methods of types that only look like those that call: a
// http.Header has a Get.
func isPlain(f *types.Func) bool {
	recv := f.Signature().Recv()
	if recv == nil || plainPath(f.Pkg().Path()) != "net/http" {
		return false
	}
	_, name := typeName(recv.Type())
	return name != "Client" && name != "Transport" && name != "RoundTripper"
}

func isNamed(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		prefix, all := strings.CutSuffix(n, "*")
		return n == name || all && strings.HasPrefix(name, prefix)
	})
}

// isClientCall tells whether a function of a client library calls the network.
func isClientCall(f *types.Func) bool {
	sig := f.Signature()
	if sig.Recv() == nil && making.MatchString(f.Name()) && !strings.Contains(f.Pkg().Path(), "stripe") {
		return false
	}
	takesContext := sig.Params().Len() > 0 && isType(sig.Params().At(0).Type(), "context", "Context")
	n := sig.Results().Len()
	fails := n > 0 && isError(sig.Results().At(n-1).Type())
	if n == 1 && strings.Contains(f.Pkg().Path(), "redis") { // the error is in the result
		_, name := typeName(sig.Results().At(0).Type())
		fails = fails || strings.HasSuffix(name, "Cmd") || strings.HasSuffix(name, "Result")
	}
	return fails && (takesContext || verb.MatchString(f.Name()) || strings.Contains(f.Pkg().Path(), "stripe"))
}

// takesCallOptions tells of the methods of clients that protoc makes for gRPC
// and Connect: they end in ...grpc.CallOption.
func takesCallOptions(sig *types.Signature) bool {
	if !sig.Variadic() {
		return false
	}
	last, ok := sig.Params().At(sig.Params().Len() - 1).Type().(*types.Slice)
	return ok && isType(last.Elem(), "google.golang.org/grpc", "CallOption") && sig.Params().Len() > 1
}

// sends tells whether a call of the network may change something there. Of an
// HTTP request the method must be known.
func (w *walk) sends(call *ast.CallExpr, callee *types.Func) bool {
	if plainPath(callee.Pkg().Path()) != "net/http" {
		return !asking.MatchString(callee.Name())
	}
	switch callee.Name() {
	case "Post", "PostForm":
		return true
	case "Do", "RoundTrip":
		return len(call.Args) == 1 && w.changes(call.Args[0])
	}
	return false
}

// changes tells whether an HTTP request is known to be none of those that only
// ask.
func (w *walk) changes(request ast.Expr) bool {
	id, ok := ast.Unparen(request).(*ast.Ident)
	if !ok {
		return false
	}
	for _, value := range w.defs[w.TypesInfo.ObjectOf(id)] {
		call, ok := ast.Unparen(value).(*ast.CallExpr)
		if !ok {
			continue
		}
		f := calleeOf(w.TypesInfo, call)
		if f == nil || !isOf(f, "net/http") {
			continue
		}
		at := map[string]int{"NewRequest": 0, "NewRequestWithContext": 1}
		if i, is := at[f.Name()]; is && i < len(call.Args) {
			method := w.TypesInfo.Types[call.Args[i]].Value
			if method != nil && method.Kind() == constant.String {
				return !slices.Contains([]string{"GET", "HEAD", "OPTIONS", ""}, constant.StringVal(method))
			}
		}
	}
	return false
}

// settling are the functions and methods that tell a broker what became of a
// delivery.
var settling = map[string][]string{
	sekaliPath + "/broker":                                         {"Settle"},
	"github.com/rabbitmq/amqp091-go":                               {"Ack", "Nack", "Reject"},
	"github.com/streadway/amqp":                                    {"Ack", "Nack", "Reject"},
	"github.com/nats-io/nats.go":                                   {"Ack", "AckSync", "Nak", "NakWithDelay", "Term"},
	"github.com/nats-io/nats.go/jetstream":                         {"Ack", "DoubleAck", "Nak", "NakWithDelay", "Term", "TermWithReason"},
	"github.com/twmb/franz-go/pkg/kgo":                             {"Commit*", "MarkCommit*"},
	"github.com/segmentio/kafka-go":                                {"CommitMessages"},
	"github.com/IBM/sarama":                                        {"MarkMessage", "MarkOffset", "Commit"},
	"github.com/Shopify/sarama":                                    {"MarkMessage", "MarkOffset", "Commit"},
	"github.com/confluentinc/confluent-kafka-go/kafka":             {"Commit*", "Store*"},
	"github.com/Azure/go-amqp":                                     {"AcceptMessage", "RejectMessage", "ReleaseMessage", "ModifyMessage"},
	"github.com/redis/go-redis":                                    {"XAck", "XAckDel"},
	"github.com/aws/aws-sdk-go-v2/service/sqs":                     {"DeleteMessage*", "ChangeMessageVisibility*"},
	"github.com/aws/aws-sdk-go/service/sqs":                        {"DeleteMessage*", "ChangeMessageVisibility*"},
	"cloud.google.com/go/pubsub":                                   {"Ack", "Nack", "AckWithResult", "NackWithResult"},
	"cloud.google.com/go/internal/pubsub":                          {"Ack", "Nack", "AckWithResult", "NackWithResult"},
	"github.com/ThreeDotsLabs/watermill/message":                   {"Ack", "Nack"},
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus": {"CompleteMessage", "AbandonMessage", "DeadLetterMessage", "DeferMessage"},
}

func isSettling(f *types.Func) bool {
	if f.Pkg() == nil || f.Signature().Recv() == nil {
		return false
	}
	path := plainPath(f.Pkg().Path())
	if strings.HasPrefix(path, sekaliPath+"/broker/") {
		path = sekaliPath + "/broker"
	}
	return isNamed(settling[path], f.Name())
}
