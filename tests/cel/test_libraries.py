"""The function libraries, function by function: expressions that must hold, and errors by kind."""

from __future__ import annotations

import pytest
from dra_api.resource import Device
from dra_cel import EvaluationError, Selector, device_selectors, prepare

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
    ],
    "conversions": [
        "string(1.0) == '1' && string(1e6) == '1e+06' && string(123456.5) == '123456.5'",
        "string(0.0001) == '0.0001'",
        "string(-0.00001) == '-1e-05'",
        "string(b'abc') == 'abc' && bytes('é').size() == 2",
        "bool('t') && !bool('0')",
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
    ],
    "lists": [
        "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sortBy(e, e) == ['a', 'b'] && [1, 2].sortBy(e, -e) == [2, 1]",
        "[1, 2, 2].distinct() == [1, 2] && [1, 2].reverse() == [2, 1] && lists.range(3) == [0, 1, 2]",
        "[[1], [2]].flatten() == [1, 2] && [1, 2, 3].slice(1, 3) == [2, 3] && [1, 2].sum() == 3 && [].sum() == 0",
        "[1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2].isSorted() && [1, 2, 1].lastIndexOf(1) == 2",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])",
        "[dyn(1), dyn('a')].max() == 1 && [dyn(2), dyn('a'), dyn(3)].isSorted()",
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
        "[optional.of(1), optional.none()].unwrapOpt() == [1]",
    ],
    "quantities": [
        "quantity('1Gi') == quantity('1024Mi') && quantity('1500m').compareTo(quantity('1.5')) == 0",
        "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('-1').isLessThan(quantity('0'))",
        "quantity('2k').add(5).asInteger() == 2005 && quantity('2k').sub(quantity('500')) == quantity('1500')",
        "quantity('2k') != quantity('1k').add(quantity('1k'))",
        "sign(quantity('-1m')) == -1 && quantity('500m').asApproximateFloat() == 0.5 && isQuantity('1.5Gi')",
        "!quantity('1000m').isInteger() && quantity('1k').isInteger() && !isQuantity('1 Gi')",
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
        "'baaac'.findAll('a*') == ['', 'aaa', ''] && 'aXb'.find('[A-Z]') == 'X' && 'a'.findAll('a', 0) == []",
    ],
    "network": [
        "ip('10.0.0.1').family() == 4 && ip('::1').isLoopback() && isIP('fe80::1') && !isIP('01.2.3.4')",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8",
        "ip('224.0.0.1').isLinkLocalMulticast() && ip('8.8.8.8').isGlobalUnicast() && !isCIDR('10.0.0.0/33')",
        "string(ip('2001:DB8::1')) == '2001:db8::1' && !ip.isCanonical('2001:DB8::1')",
        "!isIP('::ffff:1.2.3.4')",
    ],
    "urls": [
        "url('https://u:p@example.com:80/a b?x=1&x=2').getHost() == 'example.com:80'",
        "isURL('/path') && !isURL('x')",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'",
        "url('http://a/b%20c?x=1&y=a+b').getQuery() == {'x': ['1'], 'y': ['a b']}",
        "url('HTTP://a/a b').getScheme() == 'http' && url('http://a/a b').getEscapedPath() == '/a%20b'",
    ],
    "named formats": [
        "!format.dns1123Label().validate('a-1').hasValue() && format.dns1123Label().validate('A').value().size() == 1",
        "!format.labelValue().validate('').hasValue() && format.qualifiedName().validate('a/b/c').hasValue()",
        "!format.uuid().validate('01234567-89ab-cdef-0123-456789ABCDEF').hasValue() && !format.named('x').hasValue()",
        "!format.datetime().validate('2021-02-28T23:59:59Z').hasValue()",
        "format.date().validate('2021-02-29').hasValue()",
        "!format.dns1123LabelPrefix().validate('a-').hasValue() && format.byte().validate('a').hasValue()",
    ],
    "time": [
        "timestamp('2021-03-01T00:00:00Z') - duration('24h') == timestamp('2021-02-28T00:00:00Z')",
        "timestamp('2021-01-01T00:30:00Z').getHours('-01:00') == 23",
        "timestamp('2021-01-01T00:00:00Z').getDayOfWeek() == 5",
        "timestamp('2021-12-31T00:00:00Z').getDayOfYear() == 364 && timestamp('2021-12-31T00:00:00Z').getMonth() == 11",
        "duration('-1.5h').getMinutes() == -90 && duration('1500ms').getMilliseconds() == 1500",
        "timestamp('2021-07-01T00:00:00Z').getHours('Europe/Berlin') == 2",
    ],
    "equality": [
        "[dyn(1)] == [1.0] && {'a': [1]} == {'a': [1]} && !(dyn('a') == 1) && null == null",
        "quantity('1') != dyn('1')",
        "!(dyn('1') == quantity('1'))",
        "[1, 2] != [2, 1]",
        "dyn({1: 'a'})[1.0] == 'a'",
        "1 in [1, 2] && !(dyn(true) in [1]) && dyn(1.0) in [1] && 'a' in {'a': 1}",
    ],
}


@pytest.mark.parametrize(
    "expression", [expression for group in HOLDS.values() for expression in group], ids=lambda text: text[:60]
)
def test_holds(expression: str) -> None:
    selector = Selector(expression, ENVIRONMENT)
    assert selector.explain(DEVICE)[0] is True
    assert selector.matches(DEVICE) is True


@pytest.mark.parametrize(
    ("expression", "kind"),
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
    ],
    ids=lambda value: str(value)[:50],
)
def test_fails_with_its_kind(expression: str, kind: str) -> None:
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
