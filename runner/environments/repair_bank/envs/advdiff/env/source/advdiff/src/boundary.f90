! Ghost cells. A wall mirrors the interior (no flux), an outflow repeats the last cell, an inflow holds the
! value on the edge itself, so its ghosts are the reflection about that value.
module boundary
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  implicit none

contains

  subroutine fill_ghosts(d, q)
    type(deck_t), intent(in) :: d
    real(dp), intent(inout) :: q(1-ghosts:, 1-ghosts:)
    integer :: g
    do g = 1, ghosts
      q(1-g, :) = ghost(d%sides(1), d, q(g, :), q(1, :), q(d%nx+1-g, :))
      q(d%nx+g, :) = ghost(d%sides(2), d, q(d%nx+1-g, :), q(d%nx, :), q(g, :))
    end do
    do g = 1, ghosts
      q(:, 1-g) = ghost(d%sides(3), d, q(:, g), q(:, 1), q(:, d%ny+1-g))
      q(:, d%ny+g) = ghost(d%sides(4), d, q(:, d%ny+1-g), q(:, d%ny), q(:, g))
    end do
  end subroutine fill_ghosts

  pure function ghost(kind, d, mirror, nearest, opposite) result(value)
    character(len=*), intent(in) :: kind
    type(deck_t), intent(in) :: d
    real(dp), intent(in) :: mirror(:), nearest(:), opposite(:)
    real(dp) :: value(size(mirror))
    select case (kind)
    case ('periodic')
      value = opposite
    case ('wall')
      value = mirror
    case ('outflow')
      value = nearest
    case ('inflow')
      value = 2.0_dp * d%inflow_value - mirror
    case default
      error stop 'boundary: sides must be periodic, wall, outflow or inflow'
    end select
  end function ghost

end module boundary
