"""The function libraries, function by function: expressions that must hold, and errors by kind."""

from __future__ import annotations

import pytest
from dra_api.resource import Device
from dra_cel import EvaluationError, Selector, device_selectors, prepare
from rounds import each_of

DEVICE = prepare("gpu.example.com", Device())
ENVIRONMENT = device_selectors(list_attributes=True)

HOLDS = {
    "numbers": [
        "7 / 2 == 3 && -7 / 2 == -3 && -7 % 2 == -1",
        "7.0 / 2.0 == 3.5",
        "1.0 / 0.0 > 1.0e300",
        "dyn(1) == 1.0",
        "dyn(1) == 1u && 1 < 2u && 1.5 > 1",
        "!(dyn(true) == 1)",
        "double('nan') != double('nan')",
        "dyn(9007199254740993) == 9007199254740992.0",
        "int(1.9) == 1 && int(-1.9) == -1",
        "uint(3.7) == 3u",
        "2.5 - 1.0 == 1.5 && 2.0 * 1.5 == 3.0 && 2u * 3u == 6u && 5u % 3u == 2u",
        "-(1.5) == -1.5 && -dyn(duration('1s')) == duration('-1s')",
        "1.0 / 0.0 == double('inf') && -1.0 / 0.0 == double('-inf') && 0.0 / 0.0 != 0.0",
        "bool(1.5 in [1.5]) && !(dyn([1]) in [1])",
    ],
    "conversions": [
        "string(1.0) == '1' && string(1e6) == '1e+06' && string(123456.5) == '123456.5'",
        "string(0.0001) == '0.0001'",
        "string(-0.00001) == '-1e-05'",
        "string(b'abc') == 'abc' && bytes('é').size() == 2",
        "bool('t') && !bool('0')",
        "int(timestamp(5)) == 5 && int(5u) == 5",
        "string(double('nan')) == 'NaN' && string(double('inf')) == '+Inf' && string(double('-inf')) == '-Inf'",
        "string(0.0) == '0' && string(-0.0) == '-0'",
        "type(1) == int && type([1]) == list && type({}) == map && type('') == string && type(type(1)) == type",
        "string(duration('90m')) == '5400s' && int(duration('1us')) == 1000",
        "double('0x1p-2') == 0.25",
        "string(duration('-1500ms')) == '-1.5s' && string(duration('1ns')) == '0.000000001s'",
        "string(timestamp('2021-01-01T02:00:00.5+02:00')) == '2021-01-01T02:00:00.5+02:00'",
    ],
    "strings": [
        "'tacocat'.indexOf('c', 3) == 4 && 'tacocat'.lastIndexOf('c', 3) == 2 && 'a'.indexOf('b') == -1",
        "'tacocat'.substring(1, 4) == 'aco' && 'é'.charAt(0) == 'é' && 'a'.charAt(1) == ''",
        "'a-b-c'.split('-', 2) == ['a', 'b-c'] && 'ab'.split('') == ['a', 'b'] && 'ab'.split('', 1) == ['ab']",
        "'aaa'.replace('a', 'b', 2) == 'bba' && 'ab'.replace('', '-') == '-a-b-'",
        "'ÄbC'.lowerAscii() == 'Äbc'",
        "''.lastIndexOf('a') == -1 && 'abc'.lastIndexOf('', 2) == 2 && 'abc'.lastIndexOf('b', 5) == -1",
        "['a', 'b'].join('+') == 'a+b' && [].join() == ''",
        "'\\u00a0a '.trim() == 'a'",
        "strings.quote('a\\n\"') == '\"a\\\\n\\\\\"\"'",
        "'abc'.contains('b') && 'abc'.startsWith('a')",
    ],
    "format": [
        "'%s %d %x %X %o %b'.format(['a', 10, 255, 'ab', 8, 5]) == 'a 10 ff 6162 10 101'",
        "'%%'.format([]) == '%'",
        "'%.1f'.format([1234567.25]) == '1,234,567.2' && '%f'.format([0.5]) == '0.500000'",
        "'%.2e'.format([1234.5]) == '1.234500×10⁰³' && '%.15e'.format([0.001]) == ' 1.000000×10⁻⁰³'",
        "'%s'.format([{'b': [1.0, true], 'a': 'x'}]) == '{\"a\":\"x\", \"b\":[1.000000, true]}'",
        "'%s'.format([duration('1s')]) == '1s' && '%s'.format([null]) == 'null' && '%s'.format([int]) == 'int'",
        "'%f'.format([double('inf')]) == '∞' && '%f'.format(['NaN']) == 'NaN'",
        "'%.0e|%.0e'.format([double('nan'), double('-inf')]) == 'NaN|-∞'",
        "'%s'.format([[b'a', b'b']]) == '[b\"a\", b\"b\"]' && '%s'.format([[1u, 2u]]) == '[1, 2]'",
        "'%s'.format([[double('nan'), double('inf'), double('-inf')]]) == '[\"NaN\", \"+Inf\", \"-Inf\"]'",
        "'%s'.format([[timestamp(0)]]) == '[timestamp(\"1970-01-01T00:00:00Z\")]'",
        "'%s'.format([[duration('1s')]]) == '[duration(\"1s\")]'",
        r"""'%s'.format([['\u0001\u0085\U000e0001']]) == r'["\x01\u0085\U000e0001"]'""",
    ],
    "keys that are no numbers": [
        "duration('1s') in {dyn(duration('1s')): 1} && !(duration('2s') in {dyn(duration('1s')): 1})",
        "timestamp(0) in {timestamp(0): 1} && !(timestamp(1) in {timestamp(0): 1})",
        "!(null in {dyn(1): 1}) && !(type(1) in {dyn(type('')): 1}) && !(dyn(true) in {dyn(1): 1})",
    ],
    "lists": [
        "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sortBy(e, e) == ['a', 'b'] && [1, 2].sortBy(e, -e) == [2, 1]",
        "[1, 2, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && lists.range(3) == [0, 1, 2]",
        "[[1], [2]].flatten() == [1, 2] && [1, 2, 3].slice(1, 3) == [2, 3] && [1, 2].sum() == 3 && [].sum() == 0",
        "[1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2].isSorted() && [1, 2, 1].lastIndexOf(1) == 2",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])",
        "[dyn(1), dyn('a')].max() == 1 && [dyn(2), dyn('a'), dyn(3)].isSorted()",
        "[b'a', b'b'].max() == b'b' && [{'a': 1}].indexOf({}) == -1 && [b'a'].indexOf(b'x') == -1",
        "[dyn(quantity('1')), dyn(1)].indexOf(1) == 1",
        "[].distinct() == [] && dyn([]).sort() == []",
        "[1].first().value() == 1 && [1, 2].last().value() == 2 && !([].first().hasValue())",
    ],
    "macros": [
        "[1, 2, 3].exists_one(x, x > 2) && [1, 2].map(x, x > 1, x * 2) == [4] && {'a': 1}.all(k, k == 'a')",
        "['a', 'b'].exists(i, v, i == 1 && v == 'b') && {'a': 1}.transformList(k, v, v) == [1]",
        "['a'].transformMap(i, v, v + 'x') == {0: 'ax'} && ['a'].transformMapEntry(i, v, {v: i}) == {'a': 0}",
        "[1, 0].exists(x, 1 / x == 1)",
        "cel.bind(x, 1 / 0, true)",
        "optional.of(1).optMap(x, x + 1).value() == 2",
        "optional.none().optFlatMap(x, optional.of(x)).orValue(3) == 3",
    ],
    "optionals": [
        "{'a': {'b': 1}}.?a.b.orValue(0) == 1 && {}.?a.b.orValue(0) == 0 && [1][?1].orValue(2) == 2",
        "optional.none().or(optional.of(1)).value() == 1 && !optional.ofNonZeroValue(0).hasValue()",
        "has({'a': 1}.a) && !has({'a': 1}.b) && !has({'a': {'b': 1}}.?x.b)",
        "optional.of(1) == optional.of(1)",
        "optional.of(1) != dyn(1) && optional.of(1) != optional.none()",
        "!optional.ofNonZeroValue(duration('0s')).hasValue()",
        "optional.of({'a': 1}).a.value() == 1 && !optional.none().a.hasValue()",
        "has(optional.of({'a': 1}).a) && !has(optional.of({'a': 1}).b) && !has(optional.of({'a': {}}).b.c)",
        "optional.of([1])[?0].value() == 1 && !optional.of({'a': 1})[device.driver].hasValue()",
        "dyn(1).orValue(2) == 1 && dyn(device.driver).orValue(1) != dyn(1)",
        "optional.of(1) != dyn(device.driver).or(optional.of(1))",
        "optional.of({'a': 1}).optMap(m, m.a).value() == 1",
        "optional.of(google.protobuf.Int64Value{value: 1}).optMap(x, x).value() == 1",
        "optional.of({'a': 1}.a).optMap(x, x).value() == 1 && {'a': {'b': 1}}.?a.optMap(x, x.b).value() == 1",
        "[optional.of(1), optional.none()].unwrapOpt() == [1]",
    ],
    "quantities": [
        "quantity('1Gi') == quantity('1024Mi') && quantity('1500m').compareTo(quantity('1.5')) == 0",
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('-1').isLessThan(quantity('0'))",
        "quantity('2k').add(5).asInteger() == 2005 && quantity('2k').sub(quantity('500')) == quantity('1500')",
        "quantity('2k') != quantity('1k').add(quantity('1k'))",
        "sign(quantity('-1m')) == -1 && quantity('500m').asApproximateFloat() == 0.5 && isQuantity('1.5Gi')",
        "!quantity('1000m').isInteger() && quantity('1k').isInteger() && !isQuantity('1 Gi')",
        "isQuantity('.') && isQuantity('.Gi') && !quantity('9300Pi').isInteger()",
        "!quantity('9223372036854775807').add(1).isInteger() && !quantity('9999999999999999999').add(1).isInteger()",
        "quantity('5').add(quantity('0')).asInteger() == 5 && quantity('0').sub(5).asInteger() == -5",
        "quantity('1').sub(quantity('1')).isInteger() && quantity('0').add(quantity('3')).asInteger() == 3",
    ],
    "versions": [
        "semver('1.10.0').isGreaterThan(semver('1.9.9')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
        "semver('v1.2', true) == semver('1.2.0') && semver('1.2.3').minor() == 2 && isSemver('1.0.0+build')",
        "semver('1.0.0+a') == semver('1.0.0+b') && !isSemver('1.2') && isSemver('01.2', true)",
    ],
    "regular expressions": [
        "'abc123'.matches('^[a-z]+[0-9]+$') && !'abc'.matches('^b')",
        "'a1b22'.findAll('[0-9]+') == ['1', '22']",
        "'abab'.findAll('a', 1) == ['a'] && 'aXbX'.findAll('', 2) == ['', '']",
        r"r'\C'.matches(r'\Q\C\E') && !'a'.matches(r'\Q\C') && !'a'.matches(r'\\C')",
        "'baaac'.findAll('a*') == ['', 'aaa', ''] && 'aXb'.find('[A-Z]') == 'X' && 'a'.findAll('a', 0) == []",
    ],
    "network": [
        "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('fe80::1') && !isIP('01.2.3.4')",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8",
        "ip('224.0.0.1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast() && !isCIDR('10.0.0.0/33')",
        "string(ip('2001:DB8::1')) == '2001:db8::1' && !ip.isCanonical('2001:DB8::1')",
        "!isIP('::ffff:1.2.3.4')",
        "!cidr('10.0.0.0/8').containsCIDR('::/8') && !cidr('10.0.0.0/16').containsCIDR('10.0.0.0/8')",
        "ip('ff02::1').isLinkLocalMulticast() && !ip('ff05::1').isLinkLocalMulticast()",
        "!ip('255.255.255.255').isGlobalUnicast() && !ip('fe80::1').isGlobalUnicast()",
    ],
    "urls": [
        "url('https://u:p@example.com:80/a b?x=1&x=2').getHost() == 'example.com:80'",
        "isURL('/path') && !isURL('x')",
        "isURL('a:b') && isURL('//a:b/c:d') && isURL('*')",
        "!isURL('') && !isURL(':a') && !isURL('http://a\\n')",
        "!isURL('http://u%zz@a') && !isURL('http://a b/') && !isURL('http://[::1]x/') && !isURL('http://a/%zz')",
        "url('http://a') == url('http://a') && url('http://a') != url('http://b/c?d=e')",
        "url('http://a/?a=1&;b&&c=%zz&d').getQuery() == {'a': ['1'], 'd': ['']}",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'",
        "url('http://a/b%20c?x=1&y=a+b').getQuery() == {'x': ['1'], 'y': ['a b']}",
        "url('HTTP://a/a b').getScheme() == 'http' && url('http://a/a b').getEscapedPath() == '/a%20b'",
    ],
    "named formats": [
        "!format.dns1123Label().validate('a-1').hasValue() && format.dns1123Label().validate('A').value().size() == 1",
        "!format.labelValue().validate('').hasValue() && format.qualifiedName().validate('a/b/c').hasValue()",
        "!format.uuid().validate('01234567-89ab-cdef-0123-456789ABCDEF').hasValue() && !format.named('x').hasValue()",
        "!format.datetime().validate('2021-02-28T23:59:59Z').hasValue()",
        "format.date().validate('2021-02-29').hasValue() && format.date().validate('a').hasValue()",
        "!format.qualifiedName().validate('a').hasValue() && !format.qualifiedName().validate('a/b').hasValue()",
        "format.uuid() == format.uuid() && format.uuid() != format.byte()",
        "!format.dns1123LabelPrefix().validate('a-').hasValue() && format.byte().validate('a').hasValue()",
    ],
    "time": [
        "timestamp('2021-03-01T00:00:00Z') - duration('24h') == timestamp('2021-02-28T00:00:00Z')",
        "timestamp('2021-01-01T00:30:00Z').getHours('-01:00') == 23",
        "timestamp('2021-01-01T00:00:00Z').getDayOfWeek() == 5",
        "timestamp('2021-12-31T00:00:00Z').getDayOfYear() == 364 && timestamp('2021-12-31T00:00:00Z').getMonth() == 11",
        "timestamp(5) - timestamp(3) == duration('2s') && timestamp(1) < timestamp(2)",
        "duration('0') == duration('-0') && duration('1s') < duration('2s')",
        "duration('-1.5h').getMinutes() == -90 && duration('1500ms').getMilliseconds() == 1500",
        "timestamp('2021-07-01T00:00:00Z').getHours('Europe/Berlin') == 2",
    ],
    "equality": [
        "[dyn(1)] == [1.0] && {'a': [1]} == {'a': [1]} && !(dyn('a') == 1) && null == null",
        "quantity('1') != dyn('1')",
        "!(dyn('1') == quantity('1'))",
        "[1, 2] != [2, 1]",
        "dyn({1: 'a'})[1.0] == 'a'",
        "!(quantity('1') in [dyn(device.driver)])",
        "[quantity('1')] == [dyn(1)] && [dyn(1)] != [quantity('1')] && {'a': quantity('1')} == {'a': dyn(1)}",
        "{duration('1s'): 1} == {duration('1s'): 1}",
        "1 in [1, 2] && !(dyn(true) in [1]) && dyn(1.0) in [1] && 'a' in {'a': 1}",
    ],
    "messages": [
        "google.protobuf.Int64Value{,} == 0 && google.protobuf.Int64Value{value: 1,} == 1",
        "google.protobuf.Int64Value{?value: optional.of(5)} == 5",
        "google.protobuf.Int64Value{?value: optional.none()} == 0",
        "google.protobuf.Value{string_value: 'a'} == 'a' && google.protobuf.Value{bool_value: true} == true",
        "google.protobuf.ListValue{values: [b'a']} == ['YQ==']",
        "google.protobuf.ListValue{values: [9007199254740993]} == ['9007199254740993']",
        "google.protobuf.Duration{seconds: 1, nanos: 5} != duration('1s')",
    ],
}


@each_of(expression for group in HOLDS.values() for expression in group)
def test_holds(expression: str) -> None:
    selector = Selector(expression, ENVIRONMENT)
    assert selector.explain(DEVICE)[0] is True
    assert selector.matches(DEVICE) is True


@each_of(
    [
        ("1 / 0 == 1", "divide"),
        ("9223372036854775807 + 1 > 0", "overflow"),
        ("1u - 2u == 0u", "overflow"),
        ("dyn('a') + 1 == 2", "no-such-overload"),
        ("dyn('a') < 1", "no-such-overload"),
        ("quantity('1') == dyn('1')", "no-such-overload"),
        ("dyn(1).startsWith('a')", "no-such-overload"),
        ("{'a': 1}.b == 1", "no-such-key"),
        ("[1][1] == 1", "index"),
        ("'abc'.substring(4) == ''", "index"),
        ("quantity(device.driver) == quantity('1')", "quantity"),
        ("quantity('1.5').asInteger() == 1", "quantity"),
        ("quantity('2k') == quantity('1k').add(quantity('1k'))", "no-such-overload"),
        ("semver(device.driver) == semver('1.0.0')", "semver"),
        ("int(device.driver) == 1", "conversion"),
        ("ip(device.driver) == ip('::1')", "conversion"),
        ("cidr('10.0.0.0/8').containsIP(device.driver)", "no-such-overload"),
        ("timestamp('2021-01-01T00:00:00Z').getHours(device.driver) == 1", "conversion"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') == timestamp(0)", "overflow"),
        ("optional.none().value() == 1", "optional-none"),
        ("dyn(1).all(x, true)", "not-iterable"),
        ("[[1], [1]].transformMapEntry(i, v, {v[0]: i}) == {}", "other"),
        ("lists.range(49).includes(50)", "list-too-long"),
        ("device.driver.matches('(' + device.driver)", "regex"),
        ("'%d'.format([device.driver] + []) == ''", "format"),
        ("dyn('a') - dyn('b') == 1", "no-such-overload"),
        ("dyn(timestamp(5)) - 1 == 1", "no-such-overload"),
        ("dyn('a') * 2 == 4", "no-such-overload"),
        ("dyn(1.5) % 1 == 1", "no-such-overload"),
        ("-dyn('a') == 1", "no-such-overload"),
        ("!dyn(1)", "no-such-overload"),
        ("5 / dyn(2u) == 2", "no-such-overload"),
        ("dyn(duration('1s')) < timestamp(1)", "no-such-overload"),
        ("dyn([1]) < dyn([2])", "no-such-overload"),
        ("-9223372036854775808 % -1 == 0", "overflow"),
        ("-9223372036854775808 / -1 == 1", "overflow"),
        ("-dyn(duration('-2562047h47m16.854775808s')) == duration('1s')", "overflow"),
        ("duration('2562047h') + duration('2562047h') == duration('1s')", "overflow"),
        ("double('nan') < 1.0", "other"),
        ("dyn('a') * dyn('b') == 1", "no-such-overload"),
        ("[dyn(1), dyn(quantity('1'))].max() == 1", "no-such-overload"),
        ("dyn(1).flatten() == []", "no-such-overload"),
        ("dyn(1).sort() == []", "no-such-overload"),
        ("([optional.of(1)] + dyn([device.driver])).unwrapOpt() == []", "other"),
        ("dyn(device.driver).add(dyn(1)) == quantity('1')", "no-such-overload"),
        ("url('http://a/?x#%zz').getHost() == 'a'", "conversion"),
        ("dyn([{bytes(device.driver): 1}]).includes(1)", "other"),
        (
            "(device.driver == '' ? optional.none() : optional.of(quantity('2'))) == optional.of(quantity('2'))",
            "other",
        ),
        ("size(dyn(1)) == 1", "no-such-overload"),
        ("size(dyn(ip('1.2.3.4'))) == 1", "no-such-overload"),
        ("dyn(cidr('1.2.3.4/9')).size() == 1", "no-such-overload"),
        ("[dyn(quantity('1')), dyn(1)].max() == 1", "no-such-overload"),
        ("[].max() == 1", "other"),
        ("[1, 2].slice(-1, 1) == []", "index"),
        ("[1, 2].slice(2, 1) == []", "index"),
        ("[1, 2].slice(0, 3) == []", "index"),
        ("[dyn(quantity('1'))].sort() == []", "other"),
        ("[dyn(1), dyn('a')].sort() == []", "other"),
        ("[dyn('a'), dyn(1)].join() == ''", "other"),
        ("'abc'.lastIndexOf('b', -1) == 2", "index"),
        ("'abc'.indexOf('b', -1) == 2", "index"),
        ("dyn([1])[1.5] == 1", "index"),
        ("dyn([1])['a'] == 1", "index"),
        ("dyn({1: 'a'})[1.5] == 'a'", "no-such-key"),
        ("[][0] in [1]", "index"),
        ("has(dyn([1]).a)", "index"),
        ("has([][0].a)", "index"),
        ("device.attributes['x'].y.orValue(1) == 1", "no-such-key"),
        ("optional.of(dyn(quantity('1'))).?a.hasValue()", "other"),
        ("dyn([1]).unwrapOpt() == []", "no-such-overload"),
        ("dyn([device.attributes]).unwrapOpt() == []", "no-such-overload"),
        ("dyn(device.driver).add(1) == quantity('1')", "no-such-overload"),
        ("timestamp(0).getHours('1:x') == 1", "conversion"),
        ("uint('-' + device.driver) == 1u", "conversion"),
        ("uint(-1.0 * double(device.driver.size())) == 1u", "overflow"),
        ("int(18446744073709551615u - uint(size('a'))) == 5", "overflow"),
        ("double('0x1p99999' + '') == 1.0", "conversion"),
        ("url('') == url('')", "conversion"),
        ("url('http://a/#%zz').getHost() == 'a'", "conversion"),
        ("'a'.matches(r'\\C' + '')", "regex"),
        ("'a'.find('((a{100}){100}){100}' + '') == ''", "regex"),
        ("('%s %' + '').format([device.driver]) == ''", "format"),
        ("('%.f' + '').format([1.0]) == ''", "format"),
        ("('%s %s' + '').format([1]) == ''", "format"),
        ("('%q' + '').format([1]) == ''", "format"),
        ("'%s'.format([{1.5: 2}]) == ''", "format"),
        ("'%s'.format([[dyn(quantity('1'))]]) == ''", "format"),
        ("dyn(1).validate('a').hasValue()", "no-such-overload"),
        ("[format.uuid()][size('a')].validate('a').hasValue()", "index"),
        ("google.protobuf.Int64Value{?value: dyn(5)} == 5", "other"),
        ("google.protobuf.Int32Value{value: 2147483648} == 1", "overflow"),
        ("google.protobuf.Duration{nanos: 2147483648} == duration('1s')", "overflow"),
        ("google.protobuf.ListValue{values: [quantity('1')]} == []", "other"),
        ("google.protobuf.Struct{fields: dyn({1: 1})} == {}", "other"),
        ("google.protobuf.Any{} == null", "other"),
        ("'%s'.format([[?dyn(device.driver)]]) == ''", "other"),
        ("'%s'.format([{?'a': dyn(device.driver)}]) == ''", "other"),
    ],
)
def test_fails_with_its_kind(case: tuple[str, str]) -> None:
    expression, kind = case
    selector = Selector(expression, ENVIRONMENT)
    with pytest.raises(EvaluationError) as caught:
        selector.matches(DEVICE)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "expression",
    [
        "1 / 0 == 1 || true",
        "true || 1 / 0 == 1",
        "!(1 / 0 == 1 && false)",
        "!(false && 1 / 0 == 1)",
        "false ? 1 / 0 == 1 : true",
        "[0, 1].exists(x, 1 / x == 1)",
        "![0, 2].all(x, 1 / x == 1)",
        "dyn(1) || true",
        "!(dyn(1) && false)",
    ],
)
def test_errors_are_absorbed_where_they_do_not_matter(expression: str) -> None:
    assert Selector(expression, ENVIRONMENT).matches(DEVICE) is True


BOUNDS = (("int", "", -(2**63), 2**63 - 1), ("uint", "u", 0, 2**64 - 1))


@pytest.mark.parametrize(("kind", "suffix", "least", "most"), BOUNDS)
@pytest.mark.parametrize(("operator", "back"), [("+", -1), ("-", 1), ("*", 0)])
def test_numbers_reach_their_bounds_and_go_no_further(
    kind: str, suffix: str, least: int, most: int, operator: str, back: int
) -> None:
    """``one`` is no constant, so that the expression is not computed beforehand."""
    one = f"{kind}(size(device.driver) / size(device.driver))"
    bound = least if operator == "-" else most
    exact = f"{bound + back}{suffix} {operator} {one} == {bound}{suffix}"
    assert Selector(exact, ENVIRONMENT).matches(DEVICE) is True
    beyond = f"{bound}{suffix} {operator} ({one} + {one if operator == '*' else f'0{suffix}'}) == {bound}{suffix}"
    with pytest.raises(EvaluationError, match="overflow"):
        Selector(beyond, ENVIRONMENT).matches(DEVICE)
