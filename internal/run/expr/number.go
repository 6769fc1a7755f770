package expr

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// numberType is that of numbers which CEL's own types cannot hold.
var numberType = types.NewObjectType("number", traits.ComparerType)

// Number is a number of a message that neither an int, a uint nor a double holds
// without losing digits: it can be passed on, compared, and made a string, but
// not be reckoned with. Its text is as the message has it.
type Number string

// maxDigits bounds what is compared, for the time that it takes.
const maxDigits = 400

// numberOf returns the value of a number in JSON: an int or uint if it has
// neither fraction nor exponent, else a double if that has the same digits.
func numberOf(text string) ref.Val {
	if !strings.ContainsAny(text, ".eE") {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return types.Int(i)
		}
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			return types.Uint(u)
		}
		return Number(text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err == nil && digits(strconv.FormatFloat(f, 'e', -1, 64)) == digits(text) {
		return types.Double(f)
	}
	return Number(text)
}

// digits returns a number in one form: the digits that tell, and the power of
// ten behind the first.
func digits(text string) string {
	sign := ""
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		sign, text = "-", rest
	}
	mantissa, exponent := text, 0
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		n, err := strconv.Atoi(text[at+1:])
		if err != nil {
			return text // it is nothing's equal
		}
		mantissa, exponent = text[:at], n
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := whole + fraction
	exponent += len(whole)
	for strings.HasPrefix(all, "0") {
		all, exponent = all[1:], exponent-1
	}
	all = strings.TrimRight(all, "0")
	if all == "" {
		return "0"
	}
	return fmt.Sprintf("%s.%se%d", sign, all, exponent)
}

// ConvertToNative implements ref.Val.
func (n Number) ConvertToNative(want reflect.Type) (any, error) {
	if want.Kind() == reflect.String {
		return reflect.ValueOf(string(n)).Convert(want).Interface(), nil
	}
	return nil, fmt.Errorf("the number %s has more digits than a %v holds", n.short(), want)
}

// ConvertToType implements ref.Val.
func (n Number) ConvertToType(want ref.Type) ref.Val {
	switch want {
	case types.StringType:
		return types.String(n)
	case types.TypeType:
		return numberType
	case numberType:
		return n
	}
	return types.NewErr("the number %s has more digits than a %s holds: pass it on as it is, or make it a string", n.short(), want.TypeName())
}

// Equal implements ref.Val.
func (n Number) Equal(other ref.Val) ref.Val {
	c, err := n.compare(other)
	return types.Bool(err == nil && c == 0)
}

// Compare implements traits.Comparer.
func (n Number) Compare(other ref.Val) ref.Val {
	c, err := n.compare(other)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.Int(c)
}

func (n Number) compare(other ref.Val) (int, error) {
	mine, err := exact(string(n))
	if err != nil {
		return 0, err
	}
	var text string
	switch o := other.(type) {
	case types.Int:
		text = strconv.FormatInt(int64(o), 10)
	case types.Uint:
		text = strconv.FormatUint(uint64(o), 10)
	case types.Double:
		text = strconv.FormatFloat(float64(o), 'e', -1, 64)
	case Number:
		text = string(o)
	default:
		return 0, errors.New("a number is compared with what is none")
	}
	theirs, err := exact(text)
	if err != nil {
		return 0, err
	}
	return mine.Cmp(theirs), nil
}

func exact(text string) (*big.Rat, error) {
	_, exponent, found := strings.Cut(strings.ToLower(text), "e")
	power, err := 0, error(nil)
	if found {
		power, err = strconv.Atoi(exponent)
	}
	r, ok := new(big.Rat), false
	if err == nil && len(text) <= maxDigits && max(power, -power) <= maxDigits {
		_, ok = r.SetString(text)
	}
	if !ok {
		return nil, fmt.Errorf("the number %s is too long to be compared", Number(text).short())
	}
	return r, nil
}

// Type implements ref.Val.
func (n Number) Type() ref.Type { return numberType }

// Value implements ref.Val.
func (n Number) Value() any { return string(n) }

func (n Number) short() string {
	if len(n) > 60 {
		return string(n[:57]) + "…"
	}
	return string(n)
}

// plain returns the number without an exponent, or false if it is too long so.
func (n Number) plain() (string, bool) {
	if !strings.ContainsAny(string(n), "eE") {
		return string(n), true
	}
	r, err := exact(string(n))
	if err != nil {
		return "", false
	}
	if r.IsInt() {
		return r.Num().String(), true
	}
	// All digits that it has: an exponent moves the point by so many places.
	return strings.TrimRight(r.FloatString(2*maxDigits), "0"), true
}

// adapter turns what encoding/json decodes into values of CEL.
type adapter struct{}

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(v any) ref.Val {
	switch x := v.(type) {
	case json.Number:
		return numberOf(string(x))
	case map[string]any:
		return types.NewStringInterfaceMap(a, x)
	case []any:
		return types.NewDynamicList(a, x)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}
